"""A blind comparison of sounds in the browser, on this machine."""
