"""The sockets of gloo in this process, and how to shut them down under it.

A collective of gloo waits for one of its peers at a time, as long as the group's timeout says. Rank 0 of four waits for
rank 1 and hears nothing of the death of rank 2, and torch has no call that ends such a wait. The kernel has: a connection
that is shut down (shutdown(2)) is broken at both of its ends, and the collective that waits for it raises.

Which sockets are gloo's is told by its epoll instances, one for each group. They differ from those of others in that they are
inherited by programs that are executed, they and each of their sockets, and hold a socket that listens at one address beside
the connections to the other ranks.

A group that is being made waits as long for the connections of other ranks. Whoever connects says the number of the pair that
it is for, counted from 0: connections of our own, one for each number, take the places of those that do not come any more.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Collection, Iterator

Store = tuple[str, int]  # its address and port

_EPOLL = "anon_inode:[eventpoll]"
_FLAGS = re.compile(r"^flags:\s*([0-7]+)", re.MULTILINE)
_TARGET = re.compile(r"^tfd:\s*(\d+).*\bino:([0-9a-f]+)", re.MULTILINE)
_ANY = ("0.0.0.0", "::")  # gloo listens at the address of an interface
_DIAL = 1.0  # seconds; the listener is this process's own


def shut_down(stores: Collection[Store] = ()) -> int:
    """Shuts down every connection of gloo's groups in this process, and those to these stores. Returns how many were open."""
    count = 0
    for connection in _connections(stores):
        with connection:
            try:
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
            except OSError:  # it was shut down before, or its peer has
                pass
    return count


def end_rendezvous(pairs: int) -> None:
    """Connects to each of gloo's listeners of this process in the place of ranks that do not come: groups that are being made
    and wait for them, of at most so many ranks, fail once `shut_down` is called."""
    for loop in _loops():
        for found in loop:
            with found:
                if _listens(found):
                    for pair in range(pairs):
                        _dial(found, pair)


def _dial(listener: socket.socket, pair: int) -> None:
    try:
        with socket.create_connection(listener.getsockname()[:2], timeout=_DIAL) as connection:
            connection.sendall(struct.pack("=q", pair))
    except OSError:  # it has closed
        pass


def _connections(stores: Collection[Store]) -> Iterator[socket.socket]:
    for loop in _loops():
        for one in loop:
            if _listens(one):  # gloo does not catch it when that fails
                one.close()
            else:
                yield one
    if stores:
        for number, kind in _descriptors():
            inode = kind.removeprefix("socket:[").removesuffix("]")
            one_of_them = _duplicate(number, int(inode), False) if inode.isdecimal() else None
            if one_of_them is not None:
                if _peer(one_of_them) in stores:
                    yield one_of_them
                else:
                    one_of_them.close()


def _loops() -> Iterator[list[socket.socket]]:
    """Yields the TCP sockets of each epoll instance of gloo's."""
    for number, kind in _descriptors():
        if kind == _EPOLL:
            try:
                with open(f"/proc/self/fdinfo/{number}") as file:
                    text = file.read()
            except OSError:
                continue
            flags = _FLAGS.search(text)
            if flags is not None and not int(flags[1], 8) & os.O_CLOEXEC:
                found = [_duplicate(int(number), int(inode, 16), True) for number, inode in _TARGET.findall(text)]
                sockets = [one for one in found if one is not None]
                listening = [one for one in sockets if _listens(one)]
                if listening and all(one.getsockname()[0] not in _ANY for one in listening):
                    yield sockets
                else:
                    for one in sockets:
                        one.close()


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield int(name), os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue


def _duplicate(number: int, inode: int, inherited: bool) -> socket.socket | None:
    """The TCP socket with that inode, if the descriptor is it: whoever closes it meanwhile, this is no other. None for one
    that is not `inherited` where that is asked for."""
    try:
        if inherited and not os.get_inheritable(number):
            return None
        copy = os.dup(number)
    except OSError:
        return None
    try:
        facts = os.fstat(copy)
        if stat.S_ISSOCK(facts.st_mode) and facts.st_ino == inode:
            found = socket.socket(fileno=copy)
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                return found
            found.detach()
    except OSError:
        pass
    os.close(copy)
    return None


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _peer(found: socket.socket) -> Store | None:
    try:
        address, port = found.getpeername()[:2]
    except OSError:
        return None
    return str(address).removeprefix("::ffff:"), int(port)
