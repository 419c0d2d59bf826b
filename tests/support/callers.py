"""What a caller without manners does to a socket of ours, and what it hears until it is let go."""

import errno
import socket


def hear_out(connection: socket.socket, said: bytes = b"") -> bytes:
    """Send ``said``, then nothing, and return what comes until the other side closes.

    Who closes with bytes unread resets the connection (RFC 1122, 4.2.2.13), and that may reach
    the caller in any of its calls.
    """
    heard = b""
    try:
        if said:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(65536):
            heard += data
    except (ConnectionResetError, BrokenPipeError):
        pass
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise
    return heard
