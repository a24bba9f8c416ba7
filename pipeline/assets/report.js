"use strict";
document.documentElement.classList.add("scripted");
const tip = document.getElementById("tip");
const said = document.getElementById("say");

/* Every mark with data-tip tells what it is: to the pointer that is nearest, and to the arrow keys in order. */
function explain(plot) {
  const marks = [...plot.querySelectorAll("[data-tip]")];
  const ring = plot.querySelector(".ring");
  const columns = plot.classList.contains("columns");
  let at = -1;
  const centre = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2, box];
  };
  const hide = () => {
    tip.hidden = true;
    if (at >= 0) marks[at].classList.remove("on");
    if (ring) ring.classList.remove("on");
  };
  const show = (i, aloud) => {
    hide();
    at = i;
    const mark = marks[i];
    tip.replaceChildren();
    if (mark.dataset.id !== undefined) {
      const id = document.createElement("bdi");
      id.textContent = mark.dataset.id;
      tip.append(id);
    }
    tip.append(mark.dataset.tip);
    tip.hidden = false;
    mark.classList.add("on");
    if (ring) {
      ring.setAttribute("cx", mark.getAttribute("cx"));
      ring.setAttribute("cy", mark.getAttribute("cy"));
      ring.classList.add("on");
    }
    const [x, y, box] = centre(mark);
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    const above = (columns ? box.top : y) - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(4, Math.min(x - tip.offsetWidth / 2, room))}px`;
    tip.style.top = `${above > 4 ? above : y + 16}px`;
    if (aloud) said.textContent = [mark.dataset.id, mark.dataset.tip].filter((text) => text !== undefined).join(": ");
  };
  const nearest = (event) => {
    let best = -1;
    let least = columns ? Infinity : 40 * 40;
    marks.forEach((mark, i) => {
      const [x, y] = centre(mark);
      const far = (x - event.clientX) ** 2 + (columns ? 0 : (y - event.clientY) ** 2);
      if (far < least && !mark.classList.contains("dim")) [least, best] = [far, i];
    });
    return best;
  };
  const point = (event) => {
    const i = nearest(event);
    if (i < 0) hide();
    else show(i, false);
  };
  const step = (by, from = at) => {
    for (let i = from + by; i >= 0 && i < marks.length; i += by) if (!marks[i].classList.contains("dim")) return i;
    return at;
  };
  const group = (by) => {
    if (at < 0) return step(1);
    const here = marks[at].dataset.k;
    let i = at;
    while (i >= 0 && i < marks.length && (marks[i].dataset.k === here || marks[i].classList.contains("dim"))) i += by;
    if (i < 0 || i >= marks.length) return at;
    while (i > 0 && marks[i - 1].dataset.k === marks[i].dataset.k) i -= 1;
    return i;
  };
  const keys = {
    ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => step(1, -1),
    End: () => step(-1, marks.length), ArrowDown: () => group(1), ArrowUp: () => group(-1),
  };
  if (!marks.length) return;
  plot.addEventListener("pointermove", point);
  plot.addEventListener("pointerdown", point);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("focus", () => { if (plot.matches(":focus-visible")) show(at < 0 ? Math.max(0, step(1)) : at, true); });
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    if (!(event.key in keys) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    show(Math.max(0, keys[event.key]()), true);
  });
  plot.addEventListener("moved", hide);
  /* The tip does not scroll with the page: the keyboard's follows its mark, the pointer's goes. */
  window.addEventListener("scroll", () => {
    if (tip.hidden || at < 0 || !marks[at].classList.contains("on")) return;
    if (plot.matches(":focus-visible")) show(at, false);
    else hide();
  }, { passive: true });
}

document.querySelectorAll("svg.plot").forEach(explain);

/* Buttons that leave one cluster in colour. */
document.querySelectorAll("button[data-only]").forEach((button) => {
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    document.querySelectorAll("button[data-only]").forEach((other) => other.setAttribute("aria-pressed", "false"));
    button.setAttribute("aria-pressed", String(on));
    document.querySelectorAll(".map [data-k]").forEach((mark) => {
      mark.classList.toggle("dim", on && mark.dataset.k !== button.dataset.only);
    });
    document.querySelectorAll(".map").forEach((plot) => plot.dispatchEvent(new Event("moved")));
  });
});

/* Buttons that choose the axes: each mark holds its place on the other ones. */
const chosen = (button) => button.getAttribute("aria-pressed") === "true";
document.querySelectorAll("button[data-axes]").forEach((button) => {
  button.addEventListener("click", () => {
    if (chosen(button)) return;
    document.querySelectorAll("button[data-axes]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    document.querySelectorAll("[data-axes-text]").forEach((text) => { text.hidden = text.dataset.axesText !== button.dataset.axes; });
    document.querySelectorAll(".map [data-x]").forEach((mark) => {
      const [x, y] = mark.tagName === "text" ? ["x", "y"] : ["cx", "cy"];
      const old = [mark.getAttribute(x), mark.getAttribute(y)];
      mark.setAttribute(x, mark.dataset.x);
      mark.setAttribute(y, mark.dataset.y);
      [mark.dataset.x, mark.dataset.y] = old;
    });
    document.querySelectorAll(".map").forEach((plot) => plot.dispatchEvent(new Event("moved")));
  });
});
