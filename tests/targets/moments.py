"""Modules that are wrong only for a reader that runs at one moment: plain.py, with one thing changed at its end.

`EARLY`: a pool hands out zeros and keeps the contents back until the next publish of any object, like a module whose
copy is queued on a stream of its own, with the reader not ordered behind it. `BETWEEN`: a pool's publish borrows the
slot that was published before it as scratch memory. A backed tensor's publish repairs both; where one comes last in a
step, whoever reads late reads right, and of `BETWEEN` whoever reads at once does too.
"""

from targets.faults import PLAIN

EARLY = f"""{PLAIN}

_pending = []
_publish, _publish_backed = UvaBufferPool.copy_to_uva, UvaBackedTensor.copy_to_uva


def _write_pending():
    while _pending:
        slot, contents = _pending.pop()
        slot.copy_(contents)


def _publish_later(self, x):
    _write_pending()
    x = torch.as_tensor(x, dtype=self.dtype)
    slot = _publish(self, torch.zeros_like(x))
    _pending.append((slot, x.clone()))
    return slot


def _publish_at_once(self, n=None):
    self.gpu = _publish_backed(self, n)
    _write_pending()
    return self.gpu


UvaBufferPool.copy_to_uva = _publish_later
UvaBackedTensor.copy_to_uva = _publish_at_once
"""

BETWEEN = f"""{PLAIN}

_lent, _borrowed = [], []
_publish, _publish_backed = UvaBufferPool.copy_to_uva, UvaBackedTensor.copy_to_uva


def _borrow(self, x):
    while _lent:
        slot = _lent.pop()
        _borrowed.append((slot, slot.clone()))
        slot.zero_()
    _lent.append(_publish(self, x))
    return _lent[-1]


def _give_back(self, n=None):
    self.gpu = _publish_backed(self, n)
    while _borrowed:
        slot, contents = _borrowed.pop()
        slot.copy_(contents)
    _lent.clear()
    return self.gpu


UvaBufferPool.copy_to_uva = _borrow
UvaBackedTensor.copy_to_uva = _give_back
"""
