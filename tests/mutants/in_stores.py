"""Defects of saving: write-behind, group commit, files, the end of a write path."""

from tests.mutants.mutant import Mutant, law

IN_STORES = (
    Mutant(
        "saved-untold",
        "agent/_saving.py",
        "            self._pause()\n        self.session.saved()\n",
        "            self._pause()\n",
        "who follows what is durable waits for ever",
        law(
            "agent/test_write_behind.py::test_a_follower_of_what_is_durable_gets_on_although_nobody_waits"
        ),
    ),
    Mutant(
        "trouble-forgotten",
        "agent/_saving.py",
        "                self.trouble = store_failure(trouble)\n",
        "",
        "after a failed write a lazy agent goes on as if all was well",
        law(
            "agent/test_durability.py::test_a_lazy_agent_in_trouble_sends_nothing_until_a_flush_succeeds"
        ),
    ),
    Mutant(
        "write-behind-orphaned",
        "agent/_saving.py",
        "            while self._task is not None:\n"
        '                self._task.cancel(reason="the session is being closed")\n'
        "                await self._next_end()\n",
        "            pass\n",
        "a write behind goes on after its agent is gone",
        law(
            "agent/test_write_behind.py::test_a_write_behind_that_hangs_is_given_up_before_its_agent_is_closed",
            "agent/test_write_behind.py::test_an_agent_that_is_left_while_it_is_written_leaves_nothing",
        ),
    ),
    Mutant(
        "never-too-far-behind",
        "agent/_saving.py",
        "        return self._backlog.too_long(durable_seq)\n",
        "        return False\n",
        "memory grows without end while the disk is slow",
        law("agent/test_write_behind.py::test_a_disk_that_hangs_bounds_what_waits_in_memory"),
    ),
    Mutant(
        "due-not-saved",
        "agent/_saving.py",
        "            if self._quiet and self.unsaved and not self._closing:\n",
        "            if False:\n",
        "what was due during another write waits for the next event",
        law(
            "agent/test_write_behind.py::test_a_follower_of_what_is_durable_gets_on_although_nobody_waits",
            "agent/test_write_behind.py::test_an_event_that_came_during_a_failed_write_is_a_new_one",
        ),
    ),
    Mutant(
        "window-extended",
        "agent/_writer.py",
        "        if not self._waiting:\n            self._ends",
        "        if True:\n            self._ends",
        "an agent that never rests is never saved (C149)",
        law("agent/test_write_behind.py"),
    ),
    Mutant(
        "leader-takes-all",
        "stores/_group.py",
        "            if not batch.begun:\n                batch.leave(entry)\n                raise\n",
        "            if not batch.begun:\n                raise\n",
        "work of somebody who was cancelled is written all the same",
        law("stores/test_sqlite.py", "stores/test_check_store.py"),
    ),
    Mutant(
        "pending-forgotten",
        "stores/_handles.py",
        "        del self._pending[:count]\n",
        "        del self._pending[: count + 1]\n",
        "an event that was never written counts as durable (C148)",
        law("stores/test_stores.py"),
    ),
    Mutant(
        "closed-unflushed",
        "stores/_handles.py",
        "        try:\n            await self.flush()\n        finally:\n            # Not bounded",
        "        try:\n"
        "            await trio.lowlevel.checkpoint()\n"
        "        finally:\n"
        "            # Not bounded",
        "the end of a log is not written",
        law("stores/test_stores.py"),
    ),
    Mutant(
        "file-not-synced",
        "stores/_files.py",
        "        os.fdatasync(fd)\n",
        "        pass\n",
        "what was acknowledged is not on the disk",
        law("stores/test_no_sync.py", "stores/test_jsonl.py", "stores/test_engine_on_disk.py"),
    ),
)
