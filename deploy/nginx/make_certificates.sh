#!/usr/bin/env bash
# Create a certificate authority, a server certificate and an access token for the compose profile tls.
set -euo pipefail

usage() {
    cat <<'HELP'
usage: deploy/nginx/make_certificates.sh [--directory DIR] NAME [NAME ...]

Writes the files that nginx needs to serve the host names or IP addresses into DIR (default: deploy/nginx/tls of this
repository):

  ca.crt                   the authority, which clients need: SAM2TritonClient("https://NAME:8443", ca_certs="ca.crt")
  server.crt, server.key   the certificate for the names; you may replace them by those of a public authority
  tokens.map               the accepted tokens, one on each line; the script creates and prints a first token

The key of the authority, ca.key, is written to DIR-authority, which no container may read, because its owner can make
certificates for every name. The script keeps existing files, but renews a certificate of its own that has expired or
expires within 30 days; then reload nginx: docker compose exec nginx nginx -s reload. Delete server.crt to get a
certificate for other names, or tokens.map for another token.
HELP
}

directory=
names=()
while [[ $# -gt 0 ]]; do
    case "$1" in
        -h | --help)
            usage
            exit 0
            ;;
        --directory)
            directory=${2:?--directory needs a folder}
            shift
            ;;
        -*)
            echo "make_certificates.sh: there is no option '$1': see --help" >&2
            exit 2
            ;;
        *) names+=("$1") ;;
    esac
    shift
done
if [[ ${#names[@]} -eq 0 ]]; then
    usage >&2
    exit 2
fi
if ! command -v openssl >/dev/null 2>&1; then
    echo "make_certificates.sh: the program openssl is missing: install it (Debian: apt install openssl)" >&2
    exit 1
fi
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
directory=${directory:-$root/deploy/nginx/tls}
mkdir -p "$directory"
umask 077
directory=$(cd -- "$directory" && pwd)
authority=$directory-authority
mkdir -p "$authority"
# Earlier versions of this script wrote the key beside the certificates.
for name in ca.key ca.srl; do
    [[ ! -e $directory/$name ]] || mv "$directory/$name" "$authority/$name"
done
cd "$directory"

alternatives=
for name in "${names[@]}"; do
    kind=DNS
    [[ $name =~ ^[0-9.]+$ || $name == *:* ]] && kind=IP
    alternatives+=${alternatives:+,}$kind:$name
done

if [[ ! -s ca.crt ]]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -keyout "$authority/ca.key" -out ca.crt \
        -subj "/CN=triton-sam certificate authority" -addext basicConstraints=critical,CA:TRUE \
        -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
    chmod 644 ca.crt
fi
renew=
if [[ -s server.crt ]] && ! openssl x509 -checkend $((30 * 86400)) -noout -in server.crt >/dev/null; then
    if openssl verify -no_check_time -CAfile ca.crt server.crt >/dev/null 2>&1; then
        renew=1
    else
        echo "make_certificates.sh: server.crt expires soon, and is of another authority: renew it there" >&2
    fi
fi
if [[ ! -s server.crt || $renew ]]; then
    if [[ ! -s $authority/ca.key ]]; then
        echo "make_certificates.sh: the key of the authority is missing: put ca.key back into $authority" >&2
        exit 1
    fi
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout new.key -out server.csr \
        -subj "/CN=${names[0]}" 2>/dev/null
    printf 'subjectAltName=%s\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature\n%s\n' \
        "$alternatives" authorityKeyIdentifier=keyid >server.ext
    openssl x509 -req -in server.csr -CA ca.crt -CAkey "$authority/ca.key" -CAcreateserial \
        -CAserial "$authority/ca.srl" -days 825 -sha256 -extfile server.ext -out new.crt 2>/dev/null
    rm server.csr server.ext
    chmod 644 new.crt
    mv new.key server.key
    mv new.crt server.crt
fi
if [[ ! -s tokens.map ]]; then
    token=$(openssl rand -hex 24)
    {
        echo '# One line for each token: "~^Bearer TOKEN$" owner; and for a password: "~^Basic \QBASE64_OF_USER:PASSWORD\E$" owner;'
        echo '# The sign ~ makes nginx distinguish capitals, and text between \Q and \E is taken as it is.'
        printf '"~^Bearer %s$" first;\n' "$token"
    } >tokens.map
    echo "token: $token"
fi
echo "certificates for ${names[*]}: $PWD"
