"""The simulated driver: the same protocol as `breakgraph.driver.cuda`, on the CPU.

It exists so that everything above the driver can be tested, fuzzed and shown where there is no GPU. Its
answers during stream capture are a real driver's, as recorded (DESIGN S1); its streams are asynchronous, its
memory is bytes, and it finds races.

::

    driver.py      SimDriver                         call.py, results.py    what every call has in common
    *_calls.py     the calls, by CUDA's chapters     machine.py             the state that they share
    capture.py     stream capture, as rules (S1)     graphs.py              graphs and execs
    contexts.py, streams.py, operations.py, schedule.py                     what runs, and when (S3)
    memory.py, heap.py, virtual.py, ranges.py        races.py, faults.py, log.py (S7, S5, S6)
"""

from breakgraph.driver.sim.driver import SimDriver
from breakgraph.driver.sim.races import Race, RaceWarning

__all__ = ["Race", "RaceWarning", "SimDriver"]
