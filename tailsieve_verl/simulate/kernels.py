"""The event loops behind `simulate.engine`, compiled: one replica after the other, from event to event.

Arrays by request are in the input's order; `mine` are the requests of a replica. A model of costs is the tuple

    seconds    [kinds, b]   an engine step with b running requests, without context and prefill
    tokens     [kinds, b]   what it gives each of them, in the mean; 1 without drafts
    depths     [kinds, b]   drafted tokens
    passed     [kinds, D]   chance that drafts 1..d are all accepted, at d - 1
    context_s, prefill_s    seconds per token

and `kind` names a replica's row. Without samples every running request advances by the mean, so a whole stretch between
two events is done at once; with samples (`streams`, a random state for each request) every engine step is an event.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def run_all(tokens, prompts, names, by_replica, starts, kinds, limits, model, streams, until, out):  # type: ignore[no-untyped-def]
    """Every replica in turn; the simple loop if nothing ever waits or is preempted there."""
    kv, seats = limits
    finish, reached, preemptions = out
    for replica in range(starts.size - 1):
        mine = by_replica[starts[replica] : starts[replica + 1]]
        if mine.size == 0:
            continue
        most = 0.0
        for i in mine:
            most += tokens[i] + prompts[i]
        kind = kinds[replica]
        if mine.size <= seats and most <= kv and streams.size == 0:
            _all_at_once(tokens, prompts, names, mine, kind, model, until, finish, reached)
        else:
            preemptions[replica] = _scheduled(
                tokens, prompts, names, mine, kind, limits, model, streams, until, finish, reached
            )


@njit(cache=True)
def _all_at_once(tokens, prompts, names, mine, kind, model, until, finish, reached):  # type: ignore[no-untyped-def]
    """All admitted in the first step: completions in order of length."""
    seconds, per_step, _, _, context_s, prefill_s = model
    order = mine[np.argsort(tokens[mine])]
    now, done, context = 0.0, 0.0, 0.0
    for i in mine:
        context += prompts[i]
    if prefill_s > 0.0:
        now += prefill_s * _distinct(prompts, names, mine)
    running = mine.size
    for at in range(order.size):
        i = order[at]
        x = tokens[i] - done
        step, gain = seconds[kind, running], per_step[kind, running]
        took = _stretch(x / gain, step, gain, context_s, context, running)
        if now <= until < now + took:
            progress = done + gain * _steps_within(until - now, step, gain, context_s, context, running)
            for j in order[at:]:
                reached[j] = min(progress, tokens[j])
        elif now > until and at == 0:
            for j in order:
                reached[j] = 0.0
        now += took
        done = tokens[i]
        context += running * x
        context -= prompts[i] + tokens[i]
        running -= 1
        finish[i] = now
        if now <= until:
            reached[i] = tokens[i]


@njit(cache=True)
def _distinct(prompts, names, mine):  # type: ignore[no-untyped-def]
    """Prompt tokens to prefill: each name once."""
    order = mine[np.argsort(names[mine])]
    total = 0.0
    for at in range(order.size):
        if at == 0 or names[order[at]] != names[order[at - 1]]:
            total += prompts[order[at]]
    return total


@njit(cache=True)
def _stretch(steps, step, gain, context_s, context, running):  # type: ignore[no-untyped-def]
    """Seconds of so many engine steps, the context growing by `running * gain` in each."""
    return steps * step + context_s * (context * steps + running * gain * steps * (steps - 1.0) / 2.0)


@njit(cache=True)
def _steps_within(seconds, step, gain, context_s, context, running):  # type: ignore[no-untyped-def]
    """Whole engine steps that `seconds` are enough for."""
    if context_s == 0.0:
        return np.floor(seconds / step + 1e-9)
    a = context_s * running * gain / 2.0
    b = step + context_s * context - a
    x = np.floor((-b + np.sqrt(b * b + 4.0 * a * seconds)) / (2.0 * a) + 1e-9)
    return max(x, 0.0)


@njit(cache=True)
def _scheduled(tokens, prompts, names, mine, kind, limits, model, streams, until, finish, reached):  # type: ignore[no-untyped-def]
    """Admission limits, preemption, sampled drafts; returns the number of preemptions."""
    kv, seats = limits
    seconds, per_step, depths, passed, context_s, prefill_s = model
    sampled = streams.size > 0
    n = mine.size
    made = np.zeros(n)  # tokens generated so far
    fresh = np.ones(n, np.bool_)  # never admitted
    running = np.empty(n, np.int64)  # in order of admission
    back = np.empty(n, np.int64)  # preempted requests, the next one last
    seen = {np.int64(-1): True}  # prompts in the prefix cache
    b, waiting_back, head, preempted = 0, 0, 0, 0
    context, now = 0.0, 0.0
    known = False
    while b or waiting_back or head < n:
        evicted = False
        while b > 1 and context + b * per_step[kind, b] > kv:  # one request alone always fits
            b -= 1
            victim = running[b]
            context -= prompts[mine[victim]] + made[victim]
            back[waiting_back] = victim
            waiting_back += 1
            preempted += 1
            evicted = True
        prefill = 0.0
        while not evicted and b < seats and (waiting_back or head < n):
            k = back[waiting_back - 1] if waiting_back else head
            size = prompts[mine[k]] + made[k]
            if b and context + size + (b + 1) * per_step[kind, b + 1] > kv:
                break
            if waiting_back:
                waiting_back -= 1
            else:
                head += 1
            name = names[mine[k]]
            if not fresh[k]:
                prefill += size
            elif name not in seen:
                prefill += size
                seen[name] = True
            fresh[k] = False
            running[b] = k
            b += 1
            context += size
        step, gain = seconds[kind, b], per_step[kind, b]
        x = gain
        if not sampled and not evicted:  # after an eviction admission is tried again one step later
            x = np.inf
        if not sampled:
            for at in range(b):
                x = min(x, tokens[mine[running[at]]] - made[running[at]])
            x = min(x, max(1.0, np.floor((kv - context) / (b * gain))) * gain)
        start = now + prefill_s * prefill
        took = _stretch(x / gain, step, gain, context_s, context, b)
        if not known and until < start + took:
            known = True
            progress = 0.0
            if until > start:
                progress = gain * _steps_within(until - start, step, gain, context_s, context, b)
            for k in range(n):
                reached[mine[k]] = made[k]
            for at in range(b):
                i = mine[running[at]]
                reached[i] = min(reached[i] + progress, tokens[i])
        now = start + took
        kept = 0
        for at in range(b):
            k = running[at]
            i = mine[k]
            grown = x
            if sampled:
                grown = 1.0 + _accepted(streams, i, depths[kind, b], passed[kind])
            context += grown
            made[k] += grown
            if made[k] >= tokens[i] * (1.0 - 1e-12):
                finish[i] = now
                context -= prompts[i] + made[k]
            else:
                running[kept] = k
                kept += 1
        b = kept
    if not known:
        for k in range(n):
            reached[mine[k]] = tokens[mine[k]]
    return preempted


@njit(cache=True)
def _accepted(streams, i, depth, passed):  # type: ignore[no-untyped-def]
    """Drafts accepted of request i in this step: how many of the first `depth` chances one uniform number is below."""
    state = streams[i] + np.uint64(0x9E3779B97F4A7C15)  # splitmix64: a stream of its own for each request
    streams[i] = state
    z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    u = float(z >> np.uint64(11)) * 2.0**-53
    count = 0
    while count < depth and u < passed[count]:
        count += 1
    return count
