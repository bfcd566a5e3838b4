"""Single faults, each one line of plain.py replaced by another; `planted` returns the source with one of them."""

from pathlib import Path

PLAIN_GPU = Path(__file__).with_name("plain.py").read_text(encoding="utf-8")
PLAIN = PLAIN_GPU.replace("ON_GPU = torch.cuda.is_available()", "ON_GPU = False")

FAULTS = {
    "one_step_early": (
        "self._current = (self._current + 1) % self.max_concurrency\n",
        "self._current = (self._current + 1) % (self.max_concurrency - 1)\n",
    ),
    "growth_frees_all": (
        "        self._slots[self._current] = UvaBuffer((rows, *trailing), self.dtype)\n",
        "        self._slots = [UvaBuffer((rows, *trailing), self.dtype) for _ in self._slots]\n",
    ),
    "snapshot_alias": (
        "        return self._alias if n is None else self._alias[:n]\n",
        "        self._alias = self._alias if self._alias.data_ptr() != self.cpu.data_ptr() else self._alias.clone()\n"
        "        return self._alias if n is None else self._alias[:n]\n",
    ),
    "row_shifted": (
        "            first = index * width + start\n",
        "            first = index * width + min(start + 1, max(0, width - len(x)))\n",
    ),
    "wrong_row": (
        "            first = index * width + start\n",
        "            first = (index ^ 1) * width + start if self.gpu.dim() == 2 else index + start\n",
    ),
    "last_chunk_lost": (
        "        if x:\n",
        "        x = x[: (len(x) - 1) // 1024 * 1024] if len(x) > 1024 else x\n        if x:\n",
    ),
    "first_writer_wins": (
        "        for index, start, x in self._staged:\n",
        "        for index, start, x in reversed(self._staged):\n",
    ),
    "write_dropped": (
        "        for index, start, x in self._staged:\n",
        "        for index, start, x in self._staged[:-1] or self._staged:\n",
    ),
    "clear_ignored": (
        "    def clear_staged_writes(self):\n        self._staged.clear()\n",
        "    def clear_staged_writes(self):\n        pass\n",
    ),
    "keeps_callers_memory": (
        "        slot.cpu[: len(x)] = x\n        return slot.uva(len(x))\n",
        "        slot.keep = x\n        return x\n",
    ),
    "wrong_dtype": ("[UvaBuffer(size, dtype) for _ in", "[UvaBuffer(size, torch.float64) for _ in"),
    "wrong_shape": ("        return slot.uva(len(x))\n", "        return slot.uva(len(x))[:-1]\n"),
    "not_a_tensor": ("        return slot.uva(len(x))\n", "        return slot.cpu[: len(x)].numpy()\n"),
    "publish_raises": (
        "        slot = self._slots[self._current]\n        slot.cpu",
        "        slot = self._slots[self._current]\n        raise SystemExit('gone')\n        slot.cpu",
    ),
    "constructor_raises": ("        self._current = 0\n", "        raise ValueError('size must be odd')\n"),
    "constructor_pins": (
        "        self._current = 0\n",
        "        torch.zeros(3, pin_memory=True)\n        self._current = 0\n",
    ),
    "no_staged_tensor": ("class StagedWriteTensor:", "class SomethingElse:"),
    "no_apply": ("    def apply_write(self):", "    def apply_later(self):"),
    "input_zeroed": ("        slot.cpu[: len(x)] = x\n", "        slot.cpu[: len(x)] = x\n        x.zero_()\n"),
    "copy_is_slot": ("return view.clone() if out is None", "return view if out is None"),
    "copy_is_reused": (
        "        return view.clone() if out is None",
        "        self._copy = vars(self).get('_copy', view.new_zeros(4096))\n"
        "        return self._copy[: len(view)].copy_(view) if out is None",
    ),
    "staged_moves": ("        flat, width", "        self.gpu = self.gpu.clone()\n        flat, width"),
    "keeps_callers_list": ("        x = list(x)\n", ""),
    "import_raises": ("_default_depth = 2\n\n", "_default_depth = 2\nraise OSError('no such library')\n"),
    "keeps_every_slot": (
        "        self._slots[self._current] = UvaBuffer((rows, *trailing), self.dtype)\n",
        "        globals().setdefault('_old', []).append(self._slots[self._current])\n"
        "        self._slots[self._current] = UvaBuffer((rows, *trailing), self.dtype)\n",
    ),
    "keeps_a_note_of_every_write": (
        "        flat, width = self.gpu",
        "        globals().setdefault('_notes', []).append([self.dtype])\n        flat, width = self.gpu",
    ),
    "torn_by_an_iterable": (
        "        x = list(x)\n        if x:\n            self._staged.append((index, start, x))\n",
        "        kept = []\n        self._staged.append((index, start, kept))\n        kept.extend(x)\n",
    ),
    "cleared_by_a_failure": (
        "        x = list(x)\n",
        "        staged, self._staged = self._staged, []\n        x = list(x)\n        self._staged = staged\n",
    ),
    "rotates_by_thread": (
        "        self._current = (self._current + 1) % self.max_concurrency\n",
        "        import threading\n"
        "        mine = vars(self).setdefault('_mine', threading.local())\n"
        "        mine.at = self._current = (vars(mine).get('at', 0) + 1) % self.max_concurrency\n",
    ),
    "short_offset": (
        "            first = index * width + start\n",
        "            first = (index * width + start) & 0xFFFF\n",
    ),
    "first_row_decides": (
        "        self.gpu = self.pool.copy_to_uva(self.cpu if n is None else self.cpu[:n])\n",
        "        if vars(self).get('_first') is not None and torch.equal(self._first, self.cpu[:1]):\n"
        "            return self.gpu\n"
        "        self._first = self.cpu[:1].clone()\n"
        "        self.gpu = self.pool.copy_to_uva(self.cpu if n is None else self.cpu[:n])\n",
    ),
    "minus_zero_lost": (
        "        slot.cpu[: len(x)] = x\n",
        "        slot.cpu[: len(x)] = x + 0 if x.is_floating_point() else x\n",
    ),
    "nan_payload_lost": (
        "        slot.cpu[: len(x)] = x\n",
        "        slot.cpu[: len(x)] = x.nan_to_num(float('nan')) if x.is_floating_point() else x\n",
    ),
    "zero_dropped": (
        "        self._staged.append((index, 0, [x]))\n",
        "        if x:\n            self._staged.append((index, 0, [x]))\n",
    ),
    "own_apply_after_fused": (
        "        for tensor in tensors:\n            tensor.apply_write()\n",
        "        for tensor in tensors:\n            tensor.apply_write()\n"
        "            tensor.apply_write = lambda: None\n",
    ),
    "third_dimension_lost": (
        "        self._slots[self._current] = UvaBuffer((rows, *trailing), self.dtype)\n",
        "        self._slots[self._current] = UvaBuffer((rows, *trailing[:1]), self.dtype)\n",
    ),
    "gpu_float_bits": (
        "= torch.tensor(x, dtype=self.dtype).to(self.gpu.device)\n",
        "= torch.tensor(x).to(torch.int32).to(self.gpu.device)\n",
    ),
}


def planted(fault: str, source: str = PLAIN) -> str:
    """plain.py's source, by default as a module for the CPU, with one fault."""
    before, after = FAULTS[fault]
    assert source.count(before) == 1, f"{fault}: plain.py has changed"
    return source.replace(before, after)
