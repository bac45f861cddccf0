#!/bin/sh
# Installs the servers that the tests start themselves, from Debian's packages: as root on Debian only; elsewhere it says what is missing.
set -eu

# package:program that shows it is there
SERVERS="mariadb-server:mariadbd chromium:chromium chromium-driver:chromedriver openssh-server:sshd"
SERVERS="$SERVERS ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-osd:ceph-osd radosgw:radosgw ceph-mds:ceph-mds ceph-common:ceph fio:fio"
SERVERS="$SERVERS ceph-fuse:ceph-fuse xrootd-server:xrootd xrootd-client:xrdfs rabbitmq-server:rabbitmq-server iproute2:ip socat:socat nginx-light:nginx squid:squid curl:curl davix:davix-get apache2-bin:apache2 prometheus:prometheus"

missing=""
for server in $SERVERS; do
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "${server#*:}" >/dev/null || missing="$missing ${server%%:*}"
done
# the client of FTS3 is built
command -v gcc >/dev/null || missing="$missing gcc libc6-dev"
[ -e /usr/include/openssl/ssl.h ] || missing="$missing libssl-dev"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    # A policy of 101 keeps the packages from starting their services.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod +x "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    apt-get update -qq || true
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
        echo "could not install$missing; the tests that need them will say so" >&2
else
    echo "not installed, and not root on Debian:$missing; the tests that need them are skipped" >&2
fi
