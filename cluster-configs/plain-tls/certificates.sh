#!/usr/bin/env bash
# certificates.sh FOLDER [HOST…]: a small authority and one certificate for the scheduler, the workers and the client.
# Enough for tests and a private network; an organisation's own authority does as well.
set -euo pipefail
umask 077
folder=${1:?"certificates.sh FOLDER [HOST...]: say where to write them"}
shift
names=DNS:localhost,IP:127.0.0.1
for host in "$@"; do names+=",DNS:$host"; done
mkdir -p "$folder"
cd "$folder"
if [ -e ca-key.pem ]; then
  echo "$folder/ca-key.pem is there already; remove it to begin anew" >&2
  exit 1
fi
new=(openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -batch)
"${new[@]}" -x509 -days 3650 -subj "/CN=aweigh authority" -keyout ca-key.pem -out ca.pem 2>openssl.log
"${new[@]}" -subj "/CN=aweigh" -keyout key.pem -out request.pem 2>>openssl.log
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 825 \
  -extfile <(printf 'subjectAltName=%s' "$names") -out cert.pem 2>>openssl.log
rm -f request.pem ca.srl openssl.log
echo "$folder: ca.pem, cert.pem and key.pem go to every host; ca-key.pem stays here" >&2
