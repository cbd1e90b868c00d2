"""One replica simulated token by token, as plainly as possible: what the event engine must agree with."""


def token_by_token(lengths, prompts, share, costs, until=float("inf"), step_s=None, gain=1):
    """Finish times, tokens reached at `until`, and preemptions of one replica.

    A step with b running takes `step_s(b)`, without it the curve's time, and gives each `gain` tokens; lengths must be
    multiples of it.
    """
    kv = costs.kv_tokens or 10**15
    seats = costs.max_num_seqs or 10**15
    made = [0] * len(lengths)
    finish = [0.0] * len(lengths)
    reached = None
    waiting, running, cached, admitted = list(range(len(lengths))), [], set(), set()
    now, preemptions = 0.0, 0
    step_s = step_s or costs.curve

    def context():
        return sum(prompts[i] + made[i] for i in running)

    while waiting or running:
        evicted = False
        while len(running) > 1 and context() + len(running) * gain > kv:
            waiting.insert(0, running.pop())
            preemptions += 1
            evicted = True
        prefill = 0
        while not evicted and waiting and len(running) < seats:
            i = waiting[0]
            size = prompts[i] + made[i]
            if running and context() + size + (len(running) + 1) * gain > kv:
                break
            if i in admitted:
                prefill += size
            elif share[i] not in cached:
                prefill += size
                cached.add(share[i])
            admitted.add(i)
            running.append(waiting.pop(0))
        now += step_s(len(running)) + costs.context_s * context() + costs.prefill_s * prefill
        if reached is None and now > until * (1 + 1e-12):
            reached = list(made)
        for i in list(running):
            made[i] += gain
            if made[i] == lengths[i]:
                finish[i] = now
                running.remove(i)
    return finish, reached or list(made), preemptions
