"""How the address of a server is written."""


def with_port(host: str, port: int | str) -> str:
    """``localhost:8000``; an IPv6 address stands in brackets, ``[::1]:8000``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
