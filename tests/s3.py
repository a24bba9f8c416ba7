"""Test helpers: an S3 server in a process of its own, and a proxy before it that fails as networks and servers do."""

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

SECRET = "not-to-be-shown"
BUCKET = "bucket-of-tests"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(port):
    """What the environment of a client of the server must say."""
    return {
        "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }  # fmt: skip


@contextlib.contextmanager
def server():
    """The port of moto's server, with one bucket."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                create = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
                urllib.request.urlopen(create, timeout=5).close()
                break
            assert process.poll() is None
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def in_environment(variables):
    """A context in which these variables, and no others of AWS, are set."""
    before = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    try:
        for name in before:
            del os.environ[name]
        os.environ.update(variables)
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


class Proxy:
    """Passes requests on to `upstream`, but for the shares that end otherwise (at random, from a seed).

    `refuse`: answered 503 at once; `reset`: the connection is reset before the request is passed on; `lose`: after it
    was carried out, before the answer; `cut`: in the middle of the answer.
    """

    def __init__(self, upstream, seed=0, **shares):
        self.upstream, self.shares, self.chance = upstream, shares, random.Random(seed)
        self.port, self.listener, self.open = free_port(), None, set()
        self.requests, self.faults, self.lock = 0, 0, threading.Lock()

    def __enter__(self):
        self.come_back()
        return self

    def __exit__(self, *ignored):
        self.go_away()

    def come_back(self):
        """Listen again."""
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def go_away(self):
        """Refuse connections, and reset those that there are."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in list(self.open):
            reset(connection)

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _fate(self):
        with self.lock:
            self.requests += 1
            at = self.chance.random()
            for fate, share in self.shares.items():
                if at < share:
                    self.faults += 1
                    return fate
                at -= share
            return "pass"

    def _serve(self, connection):
        self.open.add(connection)
        with contextlib.suppress(OSError), connection:
            head, body = request(connection)
            if head is None:
                return
            fate = self._fate()
            if fate == "refuse":
                connection.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            elif fate == "reset":
                reset(connection)
            else:
                self._pass_on(connection, head, body, fate)
        self.open.discard(connection)

    def _pass_on(self, connection, head, body, fate):
        with socket.create_connection(("127.0.0.1", self.upstream)) as server:
            server.sendall(head[:-2] + b"Connection: close\r\n\r\n" + body)
            answer = b"".join(iter(lambda: server.recv(1 << 16), b""))
        if fate in ("lose", "cut"):
            connection.sendall(answer[: len(answer) // 2] if fate == "cut" else b"")
            reset(connection)
        else:
            connection.sendall(answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))


def request(connection):
    """(head, body) of the next request, (None, b"") where the client has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(1 << 16)
        if not more:
            return None, b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    sizes = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < sum(sizes):
        body += connection.recv(1 << 16)
    return head + b"\r\n\r\n", body


def reset(connection):
    """End a connection as a crashed peer does."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        connection.close()
