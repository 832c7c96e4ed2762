"""Names and ports of this machine, and what the operator says of them in the environment."""

# Early: every look-up of a name needs it, and a fork while it is imported stops the child.
import encodings.idna  # noqa: F401
import ipaddress
import os
import socket

PORTS = ("MC_STORE_CLIENT_MIN_PORT", "MC_STORE_CLIENT_MAX_PORT")
# Switches that our own servers read, too; they know only the words.
SWITCHES = ("MOONCRATE_INSECURE_LISTEN", "MOONCRATE_MEMORY_OVERCOMMIT")


def says_yes(variable: str) -> bool:
    """Whether a variable switches something on: `true`, or 1."""
    return os.environ.get(variable, "").lower() in ("1", "true")


def spell_out_switches() -> None:
    """Spells the 1 of a switch as a word, for the server that this process becomes."""
    for variable in SWITCHES:
        if says_yes(variable):
            os.environ[variable] = "true"


def is_local(host: str) -> bool:
    """Whether a name or a number is this machine's own. Nobody is asked: what a name means elsewhere
    may be a stranger's choice."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address, by what its name means here; one that is unknown
    counts as reachable."""
    if is_local(host):
        return True
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return False
    return bool(found) and all(map(is_local, found))


def client_ports() -> range:
    """Ports of clients that name none; ValueError, with words, if they are none."""
    try:
        low, high = (
            int(os.environ.get(name, default))
            for name, default in zip(PORTS, ("12300", "14300"), strict=True)
        )
        ports = range(low, max(low, high) + 1)
        if low < 1 or ports[-1] > 65535:
            raise ValueError
    except ValueError:
        raise ValueError(f"{' and '.join(PORTS)} are numbers from 1 to 65535") from None
    return ports
