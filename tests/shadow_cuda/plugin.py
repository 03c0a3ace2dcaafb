"""``-p tests.shadow_cuda.plugin``: pytest with a card, which is there before anything imports torch."""

from tests.shadow_cuda import guard

guard.load()
guard.device().install()
