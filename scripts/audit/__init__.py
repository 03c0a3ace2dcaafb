"""Which tests stand against which kind of fault."""
