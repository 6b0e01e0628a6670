"""Defects of lifetimes: creation, disposal, ownership, those who wait."""

from tests.mutants.mutant import Mutant, by, law

IN_LIVES = (
    Mutant(
        "not-rolled-back",
        "agent/_creation.py",
        "                life.bound.extend()\n"
        "                await life.tear_down()\n"
        "            elif",
        "                life.bound.extend()\n            elif",
        "a creation that fails leaves its agent behind (C23)",
        law("agent/test_creation.py::test_a_failure_at_every_stage_rolls_everything_back"),
    ),
    Mutant(
        "id-not-released",
        "agent/_creation.py",
        "            elif acquired or agent_id not in self._acquiring:\n"
        "                self.release(agent_id)\n",
        "",
        "after a failed creation its id is taken for ever (C23)",
        law("agent/test_creation.py::test_a_session_that_is_not_there_leaves_the_id_free"),
    ),
    Mutant(
        "late-handle-leaked",
        "agent/_creation.py",
        "            if late[1] is not None:\n                await late[1].close()\n",
        "            del late\n",
        "a store that was slow keeps its lock (C25)",
        law("agent/test_creation.py::test_a_slow_store_under_cancellation_leaks_no_handle"),
    ),
    Mutant(
        "handle-kept-after-bad-log",
        "agent/_creation.py",
        "            except BaseException:\n"
        "                await handle.close()\n"
        "                raise\n"
        "            return session, handle\n",
        "            except BaseException:\n"
        "                raise\n"
        "            return session, handle\n",
        "a damaged log stays locked after the resume that refused it",
        law(
            "agent/test_creation.py::test_a_log_that_cannot_be_read_leaves_the_id_free_and_the_lock_open"
        ),
    ),
    Mutant(
        "input-not-held",
        "agent/_run_state.py",
        "        if self.held:\n            self._held_wake = True\n        elif activity is None:",
        "        if activity is None:",
        "an agent runs before its creation is announced (C18)",
        law("agent/test_creation.py::test_input_during_creation_is_held_and_runs_afterwards"),
    ),
    Mutant(
        "held-wake-lost",
        "agent/_run_state.py",
        "            if self.activity is None and self.session.pending:\n"
        "                self.start()\n"
        "        self.changed()\n"
        "\n"
        "    def cancel",
        "        self.changed()\n\n    def cancel",
        "input of a creation waits for another wake (C18)",
        law("agent/test_creation.py::test_input_during_creation_is_held_and_runs_afterwards"),
    ),
    Mutant(
        "not-detached",
        "agent/_lifetime.py",
        "        self.registry.detach(agent)\n",
        "",
        "an agent that is gone is still listed (C27)",
        law("agent/test_lifetimes.py::test_teardown_goes_from_the_inside_to_the_outside"),
    ),
    Mutant(
        "id-kept",
        "agent/_lifetime.py",
        "        self.registry.release(agent.id)\n",
        "",
        "the id of an agent that is gone cannot be used again (C27)",
        law("agent/test_lifetimes.py::test_an_id_is_free_only_after_private_cleanup"),
    ),
    Mutant(
        "waiters-forgotten",
        "agent/_lifetime.py",
        "        state.waiters.abandon(lambda: self._end_of(agent))\n",
        "",
        "who asked an agent that is gone waits for ever",
        law(
            "agent/test_lifetimes.py::test_a_pending_ask_of_an_engine_that_is_left_gets_agent_disposed"
        ),
    ),
    Mutant(
        "followers-forgotten",
        "agent/_lifetime.py",
        "        agent.session.detach()\n",
        "",
        "who follows the log of an agent that is gone waits for ever",
        law(
            "agent/test_lifetimes.py::test_a_follower_ends_with_the_session_and_has_seen_all_of_it"
        ),
    ),
    Mutant(
        "path-not-closed",
        "agent/_lifetime.py",
        "        await self._patiently(self._close_path)\n",
        "",
        "what an agent did last is not saved, and its session stays locked (C32)",
        by("resumed", "user"),
    ),
    Mutant(
        "path-closed-unbounded",
        "agent/_lifetime.py",
        "bound = trio.CancelScope(shield=True, deadline=self.bound.deadline)",
        "bound = trio.CancelScope(shield=True)",
        "a store that hangs keeps an engine from ending",
        law("agent/test_lifetimes.py::test_a_close_that_hangs_is_bounded_and_reported"),
    ),
    Mutant(
        "maintenance-not-awaited",
        "agent/_lifetime.py",
        '                lambda: state.activity is None or state.activity.kind != "maintenance"\n',
        "                lambda: True\n",
        "an agent is gone while its maintenance job runs (C29)",
        law("agent/test_lifetimes.py::test_a_maintenance_job_has_ended_before_its_agent_is_gone"),
    ),
    Mutant(
        "broken-turn-left-open",
        "agent/_lifetime.py",
        "        for act in (self._close_turn, state.end):\n",
        "        for act in (state.end,):\n",
        "a driver that breaks leaves its turn open",
        law(
            "agent/test_transparency.py::test_a_driver_that_breaks_inside_a_turn_leaves_a_log_that_resumes"
        ),
    ),
    Mutant(
        "host-swallowed",
        "agent/_lifetime.py",
        "        if others is not None:\n            raise single(others) from None\n",
        "",
        "the host's cancel ends in the agent's nursery (C176)",
        law("agent/test_transparency.py"),
    ),
    Mutant(
        "scope-outlives-agent",
        "agent/_lifetime.py",
        "        agent.scope.close()\n",
        "",
        "listeners of an agent that is gone are still called (C37)",
        law(
            "agent/test_lifetimes.py::test_an_agents_scope_ends_with_it_and_takes_nothing_afterwards"
        ),
    ),
    Mutant(
        "sends-after-the-end",
        "agent/_lifetime.py",
        "        state.sealed = True\n",
        "",
        "input that nobody will save is taken",
        law(
            "agent/test_lifetimes.py::test_input_that_comes_while_the_write_path_closes_is_parked_or_refused",
            "agent/test_lifetimes.py::test_an_edit_after_disposal_is_refused_and_changes_nothing",
        ),
    ),
)
