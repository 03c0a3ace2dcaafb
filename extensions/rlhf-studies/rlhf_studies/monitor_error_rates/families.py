"""The kinds of run that are simulated."""

from __future__ import annotations

from rlhf_studies.monitor_error_rates.simulate import Family, ramp, still

FAMILIES: dict[str, Family] = {
    "flat, 16 checks": Family(),
    "flat, gold rarely right": Family(quality=still(-2.0)),
    "flat, gold nearly always right": Family(quality=still(2.0)),
    "flat, heavy tails": Family(heavy_tails=True),
    "flat, steps resemble each other": Family(wander=0.3),
    "learns": Family(quality=ramp(-1.0, 1.0)),
    "learns at once, then saturates": Family(quality=ramp(-1.5, 1.5, 0.0, 0.2)),
    "learns, longer": Family(quality=ramp(-1.0, 1.0), length=ramp(100.0, 200.0)),
    "learns, longer, no second reward": Family(quality=ramp(-1.0, 1.0), length=ramp(100.0, 200.0), checks=0),
    "learns, shorter, no second reward": Family(quality=ramp(-1.0, 1.0), length=ramp(200.0, 100.0), checks=0),
    "longer, nothing learnt": Family(length=ramp(100.0, 300.0), checks=0),
    "learns, checked every 10 steps": Family(quality=ramp(-0.5, 0.5), checks=64, every=10, group_size=1),
    "learns, a little style too": Family(quality=ramp(-0.5, 0.5), exploit=ramp(0.0, 0.5)),
    "two parts rise": Family(parts=(ramp(0.0, 1.0), ramp(0.0, 0.5))),
    "one of two parts rises": Family(parts=(ramp(0.0, 1.5), still())),
    "reward and gold fall together": Family(quality=ramp(0.5, -1.0, 0.3, 1.0)),
    "length hack, gold falls": Family(
        "length", 0.2, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 1.5, 0.3, 1.0), ramp(100.0, 250.0, 0.2, 1.0), 0.5
    ),
    "length hack, gold stays": Family("length", 0.2, still(), still(), ramp(100.0, 300.0, 0.2, 1.0), 1.0),
    "length hack, no second reward": Family(
        "length", 0.2, still(), still(), ramp(100.0, 250.0, 0.2, 1.0), 1.0, checks=0
    ),
    "brevity hack, gold falls": Family(
        "brevity", 0.2, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 0.8, 0.3, 1.0), ramp(100.0, 30.0, 0.2, 1.0), -1.0
    ),
    "brevity hack, no second reward": Family(
        "brevity", 0.2, still(), still(), ramp(100.0, 30.0, 0.2, 1.0), -1.0, checks=0
    ),
    "gold declines": Family("gold", 0.3, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 2.0, 0.3, 1.0)),
    "gold declines, the reward holds": Family("gold", 0.3, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 1.0, 0.3, 1.0)),
    "gold stays behind": Family("gold", 0.2, still(), ramp(0.0, 3.0, 0.2, 1.0)),
    "gold declines, checked every 10 steps": Family(
        "gold, 20 readings", 0.3, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 2.0, 0.3, 1.0), checks=64, every=10, group_size=1
    ),
    "one part at another's cost": Family("part", 0.3, parts=(ramp(0.0, 1.5, 0.3, 1.0), ramp(0.0, -0.5, 0.3, 1.0))),
}
