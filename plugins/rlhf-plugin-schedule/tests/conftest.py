from tests.data.conftest import refused, write

__all__ = ["refused", "write"]
