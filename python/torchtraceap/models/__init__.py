"""What an operator computes: its family, floating-point operations and bytes."""

from torchtraceap.models.families import FAMILIES, family_of

__all__ = ["FAMILIES", "family_of"]
