#!/bin/sh
# The parts of the official image's entry point that the compose file uses: source scripts, and fill templates, including
# the addresses of the name servers.
set -eu
NGINX_LOCAL_RESOLVERS=$(sed -n 's/^nameserver *//p' /etc/resolv.conf | tr '\n' ' ')
for script in /docker-entrypoint.d/*.envsh; do
    # shellcheck disable=SC1090
    [ ! -x "$script" ] || . "$script"
done
for template in /etc/nginx/templates/*.template; do
    name=$(basename "$template" .template)
    sed "s/\${NGINX_LOCAL_RESOLVERS}/$NGINX_LOCAL_RESOLVERS/; s/\${SERVICE_SERVER}/$SERVICE_SERVER/" "$template" >"$NGINX_ENVSUBST_OUTPUT_DIR/$name"
done
exec "$@"
