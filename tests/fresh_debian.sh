#!/usr/bin/env bash
# A fresh Debian, on which README is followed: tests/fresh_debian.sh SUITE [COMMAND...]
#
# Makes the root of a new system with debootstrap, puts the checkout's last commit into it, and runs the commands there one
# after the other: `make demo` and `make test`, where none is given. They see nothing of this machine but its kernel, its
# network and the configuration of pip, with the folders that this names. Root is needed. Ends with the status of the first
# command that fails, and leaves nothing behind: mounts and processes are in namespaces of their own, the root is removed.
#
# PACKAGES: what is installed besides Debian's smallest system. MIRROR: another server than debootstrap's own. APT: options of
# apt-get, such as `-o Acquire::Check-Valid-Until=false` for a mirror that stands still.
# TAKE: files and folders of the checkout that are not committed, and are wanted there too.
# TMPDIR: where the root is made; with PyTorch it takes up to 10 GB.
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PACKAGES=${PACKAGES:-ca-certificates git iproute2 make procps python3 python3-venv}

say() { echo "test-debian: $*" >&2; }

# --- within the namespaces -----------------------------------------------------------------------------------

# pip_paths: the files of pip's configuration, and the files and folders that it names.
pip_paths() {
    for file in /etc/pip.conf /etc/xdg/pip/pip.conf "$HOME/.pip/pip.conf" "$HOME/.config/pip/pip.conf" "${PIP_CONFIG_FILE:-}"; do
        [ -f "$file" ] && echo "$file" && tr ' =,' '\n' <"$file"
    done
    env | sed -n 's/^\(PIP_[A-Z_]*\|[A-Z_]*CA_BUNDLE\|SSL_CERT_[A-Z]*\)=//p' | tr ' ' '\n'
}

# lend PATH: the same file or folder in the new system, to be read only.
lend() {
    if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root$(dirname "$1")" && touch "$root$1"; fi
    mount --bind "$1" "$root$1" && mount -o remount,bind,ro "$root$1"
}

inside() {
    root=$1/system suite=$2 && shift 2

    # An older debootstrap does not know the newest suites: they are made as sid is.
    local scripts=${DEBOOTSTRAP_DIR:-/usr/share/debootstrap}
    if [ ! -e "$scripts/scripts/$suite" ]; then
        say "this debootstrap does not know $suite: made as sid is"
        cp -r "$scripts" "$root.scripts" && ln -s sid "$root.scripts/scripts/$suite"
        export DEBOOTSTRAP_DIR=$root.scripts
    fi
    say "making $suite in $root"
    debootstrap --variant=minbase "$suite" "$root" ${MIRROR:-} >"$root.log" 2>&1 || { tail -20 "$root.log" >&2; exit 1; }
    git clone -q --depth 1 "file://$HERE" "$root/root/monarch"
    # shellcheck disable=SC2086
    [ -z "${TAKE:-}" ] || (cd "$HERE" && cp -r --parents $TAKE "$root/root/monarch")

    mount --bind "$root" "$root"  # programs there may make namespaces of mounts: the root is one
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    mkdir -p "$root/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    cat /etc/resolv.conf >"$root/etc/resolv.conf"
    cat /etc/hosts >"$root/etc/hosts"
    hostname >"$root/etc/hostname"

    local variables=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}")
    mapfile -t -O "${#variables[@]}" variables < <(env | grep -iE '^(PIP_|[a-z]+_proxy=|[A-Z_]*CA_BUNDLE=|SSL_CERT_)' || true)
    in_root() { chroot "$root" env -i "${variables[@]}" "$@"; }

    say "installing $PACKAGES"
    # shellcheck disable=SC2086
    in_root sh -c "apt-get ${APT:-} -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $PACKAGES" \
        >"$root.log" 2>&1 || { tail -20 "$root.log" >&2; exit 1; }

    # After that: certificates that are lent must not be written by a package.
    while read -r path; do
        path=${path#file://}
        path=${path%/simple}  # the files of an index lie beside it
        [[ $path == /* && -e $path ]] && [ ! -s "$root$path" -o -f "$path" ] && lend "$path"
    done < <(pip_paths | sort -u)

    say "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$root/etc/os-release"), $(in_root python3 --version), $(in_root python3 -c 'import platform; print(*platform.libc_ver())')"
    for command in "$@"; do
        say "$command"
        in_root sh -c "cd /root/monarch && $command" || { local status=$?; say "'$command' ended with status $status"; exit "$status"; }
    done
    exit 0
}

# --- outside -------------------------------------------------------------------------------------------------

if [ "${1:-}" = --inside ]; then
    shift
    inside "$@"
fi

suite=${1:-}
[ -n "$suite" ] || { say 'which Debian? tests/fresh_debian.sh SUITE [COMMAND...], for example trixie'; exit 2; }
shift
[ $# -gt 0 ] || set -- 'make demo' 'make test'
[ "$(id -u)" -eq 0 ] || { say "this needs root: sudo make test-debian SUITE=$suite"; exit 1; }
for program in debootstrap unshare git; do
    command -v "$program" >/dev/null || { say "not installed: $program (on Debian: apt-get install debootstrap util-linux git)"; exit 1; }
done
[ -z "$(git -C "$HERE" status --porcelain)" ] || say 'what is not committed is not part of this'

root=$(mktemp -d "${TMPDIR:-/tmp}/debian-$suite.XXXXXX")
child=
finish() {
    local first=
    # The first process of the namespace ends with all others, and is gone when they are.
    if [ -n "$child" ] && [ -e "/proc/$child" ]; then
        first=$(cat "/proc/$child/task/$child/children" || true)  # a line without an end
        kill -KILL $first || true
        wait "$child" || true
    fi 2>/dev/null
    rm -rf --one-file-system "$root"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

set -m  # a group of its own: Ctrl-C comes here, and `finish` ends it
unshare --mount --pid --fork -- "$BASH" "${BASH_SOURCE[0]}" --inside "$root" "$suite" "$@" </dev/null &
child=$!
wait "$child"
