"""The steps of a night and of a publication by hand: what Airflow's operators and the command line both call.

plan -> reserve -> per batch: prepare, publish -> verify -> gate. Each reads its state from the ledger, so that
any of them may be run again after a crash, even beside a process that outlived its task.
"""
