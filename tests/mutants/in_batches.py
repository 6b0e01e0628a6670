"""Defects of tool batches: slots, barriers, touches, commits, bodies, policy."""

from tests.mutants.mutant import Mutant, by, law

IN_BATCHES = (
    Mutant(
        "slot-leaked",
        "tools/_batch.py",
        "        call.ready = True\n        self.running -= 1\n",
        "        call.ready = True\n",
        "a slot is never given back, and the batch stands still",
        by("batch", "user"),
    ),
    Mutant(
        "touch-leaked",
        "tools/_batch.py",
        "        if claim is not None and claim is not NOTHING and self._held is not None:\n"
        "            self._held.release(claim)\n",
        "",
        "what a call touched stays taken, and the batch stands still",
        by("touching", "user"),
    ),
    Mutant(
        "touches-ignored",
        "tools/_batch.py",
        "            if held.conflicts(claim):\n                return None\n",
        "",
        "two bodies touch one file at once",
        by("touching", "user"),
    ),
    Mutant(
        "barrier-does-not-wait",
        "tools/_batch.py",
        "            if self.committed != index:\n"
        "                return None\n"
        "            self._exclusive = True\n",
        "            self._exclusive = True\n",
        "an exclusive call begins beside others (C121)",
        law("tools/test_batch.py"),
    ),
    Mutant(
        "barrier-passed",
        "tools/_batch.py",
        "            self._exclusive = True\n",
        "            self._exclusive = False\n",
        "others begin beside an exclusive call (C121)",
        law("tools/test_batch.py"),
    ),
    Mutant(
        "one-too-many",
        "tools/_batch.py",
        "self.running < self.batch.capacity",
        "self.running <= self.batch.capacity",
        "more bodies run at once than the cap says (C174)",
        law("tools/test_batch.py"),
    ),
    Mutant(
        "cut-wave-not-settled",
        "tools/_batch.py",
        "        except trio.Cancelled:\n"
        "            for call in wave:\n"
        "                call.outcome = aborted_before_dispatch()\n"
        "                self._settle(call)\n",
        "        except trio.Cancelled:\n            pass\n",
        "calls whose flush is cut are never answered",
        by("slow disk", "user"),
    ),
    Mutant(
        "rest-not-answered",
        "tools/_batch.py",
        "            if self.draining and self.committed == len(opened):\n"
        "                self._skip_rest()\n",
        "            if self.draining and self.committed == len(opened):\n                return\n",
        "an aborted batch records nothing of the calls it did not start (C124)",
        law("tools/test_batch.py::test_every_batch_keeps_the_laws"),
    ),
    Mutant(
        "drain-cut",
        "tools/_batch.py",
        "        if self.draining:\n"
        "            # Started bodies are asked to stop and waited for; that wait cannot be cut.\n"
        "            return trio.lowlevel.Abort.FAILED\n",
        "",
        "an aborted batch does not wait for its bodies (C128)",
        by("shielding", "user"),
    ),
    Mutant(
        "tasks-left",
        "tools/_batch.py",
        "            if over and not self.tasks:\n",
        "            if over:\n",
        "a batch that fails leaves bodies behind in the nursery of its turn (C125)",
        law("tools/test_batch_shared.py"),
    ),
    Mutant(
        "flush-holds-commits",
        "tools/_batch.py",
        "        if len(self.opened) - self.committed == len(waiting):\n",
        "        if True:\n",
        "results that are ready wait until calls behind them are durable",
        law("tools/test_batch.py::test_a_commit_does_not_wait_for_a_flush"),
    ),
    Mutant(
        "failure-concludes",
        "tools/_batch.py",
        "            if outcome.concludes and not outcome.is_error:\n",
        "            if outcome.concludes:\n",
        "a call that failed ends the turn (C119)",
        law("agent/test_turns.py::test_a_conclusion_that_a_listener_makes_an_error_does_not_count"),
    ),
    Mutant(
        "ctrl-c-swallowed",
        "tools/_batch.py",
        "        if self.interrupt is not None:\n            raise self.interrupt\n",
        "",
        "Ctrl-C inside a tool is a result like any other",
        by("batch", "KeyboardInterrupt in a body"),
    ),
    Mutant(
        "commits-as-they-end",
        "tools/_batch.py",
        "            if self.committed < len(opened) and opened[self.committed].ready:\n"
        "                await self._commit()\n",
        "            ahead = [c for c in opened[self.committed :] if c.ready]\n"
        "            if ahead:\n"
        "                opened.insert(self.committed, opened.pop(opened.index(ahead[0])))\n"
        "            if self.committed < len(opened) and opened[self.committed].ready:\n"
        "                await self._commit()\n",
        "results are committed as bodies end, not as the model wrote the calls (C116)",
        by("batch", "user"),
    ),
    Mutant(
        "store-failure-swallowed",
        "tools/_batch.py",
        "        if self.failure is not None:\n            raise self.failure\n",
        "",
        "a batch whose calls could not be saved goes on as if they were (C125)",
        law("agent/test_health.py"),
    ),
    Mutant(
        "cancel-swallowed-by-a-call",
        "tools/_pipeline.py",
        "                # Goes on: a listener around the body may have a deadline of its own.\n"
        "                raise\n",
        "                return aborted()\n",
        "a cancelled body returns a value to the listeners around it",
        law("tools/test_pipeline.py"),
    ),
    Mutant(
        "started-unsaid",
        "tools/_pipeline.py",
        "    return aborted() if call.started else aborted_before_dispatch()\n",
        "    return aborted_before_dispatch()\n",
        "a call that ran is said not to have begun",
        by("batch", "user"),
    ),
    Mutant(
        "unreviewed-success",
        "tools/_pipeline.py",
        "return outcome if outcome.is_error else evolve(aborted(), contexts=outcome.contexts)",
        "return outcome",
        "a result that policy had not seen to the end is shown to the model",
        law("tools/test_pipeline.py"),
    ),
    Mutant(
        "guard-fails-open",
        "tools/_pipeline.py",
        "                    call.outcome = aborted_before_dispatch() if rest is None else raised(rest)\n"
        "                    call.reviewed = False\n"
        "                    return\n"
        "                if reason",
        "                    continue\n                if reason",
        "a guard that fails lets the call through (C114)",
        law("tools/test_pipeline.py"),
    ),
    Mutant(
        "truthy-approval",
        "tools/_pipeline.py",
        "return Allow() if await self.approver(hook, reason) is True else Deny(reason)",
        "return Allow() if await self.approver(hook, reason) else Deny(reason)",
        "an approver that returns anything at all approves",
        law("tools/test_pipeline.py"),
    ),
    Mutant(
        "undecided-allowed",
        "tools/_pipeline.py",
        '                call.outcome = raised(self.hooks.pre_execute.wrong(decision, "Allow, Deny or Ask"))\n',
        "                self.admit_now(call)\n",
        "a policy that decides nothing lets the call through",
        law("tools/test_pipeline.py"),
    ),
    Mutant(
        "timeout-beats-cancel",
        "tools/_running.py",
        "        for _ in range(2):  # a cancel of the same instant comes first\n"
        "            await trio.lowlevel.checkpoint()\n",
        "",
        "a timeout and a cancel of the same instant are told apart by luck",
        law("agent/test_tool_cases.py::test_a_cancel_is_no_timeout"),
    ),
    Mutant(
        "handle-outlives-call",
        "tools/_run.py",
        "            self._closed = True\n",
        "            self._closed = False\n",
        "a body that has ended adds context to a step that is over",
        law("tools/test_pipeline.py", "tools/test_tool.py"),
    ),
)
