"""How each engine is asked and answers, from the server's side: pure functions between bytes and requests.

These encoders are written from captured streams and know nothing of the decoders in `longbench_sched/engine/`.
"""
