"""The kind of a slot as a column shows it, in the words of the reasons."""

from easyscale.kinds import short_kind

__all__ = ["short_kind"]
