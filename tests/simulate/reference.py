"""One replica simulated token by token, as plainly as possible: what the event engine must agree with."""


def token_by_token(lengths, prompts, share, costs, until=float("inf")):
    """Finish times, tokens reached at `until`, and preemptions of one replica."""
    kv = costs.kv_tokens or 10**15
    seats = costs.max_num_seqs or 10**15
    made = [0] * len(lengths)
    finish = [0.0] * len(lengths)
    reached = None
    waiting, running, cached, admitted = list(range(len(lengths))), [], set(), set()
    now, preemptions = 0.0, 0

    def context():
        return sum(prompts[i] + made[i] for i in running)

    while waiting or running:
        evicted = False
        while running and context() + len(running) > kv:
            waiting.insert(0, running.pop())
            preemptions += 1
            evicted = True
        prefill = 0
        while not evicted and waiting and len(running) < seats:
            i = waiting[0]
            size = prompts[i] + made[i]
            if context() + size + len(running) + 1 > kv:
                break
            if i in admitted:
                prefill += size
            elif share[i] not in cached:
                prefill += size
                cached.add(share[i])
            admitted.add(i)
            running.append(waiting.pop(0))
        now += costs.curve(len(running)) + costs.context_s * context() + costs.prefill_s * prefill
        if reached is None and now > until * (1 + 1e-12):
            reached = list(made)
        for i in list(running):
            made[i] += 1
            if made[i] == lengths[i]:
                finish[i] = now
                running.remove(i)
    return finish, reached or list(made), preemptions
