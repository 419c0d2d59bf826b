"""The server of these tests, from the shared fixtures."""

from tests.support.etcd import etcd_binary, etcd_server, folder

__all__ = ["etcd_binary", "etcd_server", "folder"]
