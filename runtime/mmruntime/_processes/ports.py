"""Ports: on which of them this process listens, where a firewall lets only some through."""

from __future__ import annotations

import os
import re
import socket

from mmruntime._processes.launchers import Environment

PORTS = "MMRUNTIME_PORTS"


def listen(environment: Environment | None = None) -> socket.socket:
    """A socket that listens on all interfaces, on a port of `MMRUNTIME_PORTS`, if that is set.

    Args:
        environment: The environment variables; those of this process if left out.

    Raises:
        ValueError: If `MMRUNTIME_PORTS` is not a range of ports.
        OSError: If none of its ports is free.
    """
    problem: OSError | None = None
    for port in allowed_ports(os.environ if environment is None else environment):
        try:
            return socket.create_server(("", port), backlog=128, reuse_port=False)
        except OSError as error:
            problem = error
    raise OSError(f"init: no port of {PORTS} is free: {problem}")


def allowed_ports(environment: Environment) -> range:
    """The ports that this process may listen on; 0 stands for any that is free.

    Raises:
        ValueError: If `MMRUNTIME_PORTS` is not a range of ports.
    """
    text = environment.get(PORTS, "").strip()
    if not text:
        return range(1)
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if match is None or not 0 < int(match[1]) <= int(match[2]) < 65536:
        raise ValueError(f"init: {PORTS} must be a range of ports such as 40000-40031, got {text!r}.")
    return range(int(match[1]), int(match[2]) + 1)
