"""The main job in ten lines, without Spark and Airflow: the first test to read, and the first to fail."""

from support.world import World


def test_a_killed_stage_recovers_and_commits_once(tmp_path):
    world = World(tmp_path)
    world.create_table()
    world.put_files()
    world.stage(splits=2)
    attempt = world.stage()
    (first,) = world.commit(attempt)
    (again,) = world.commit(attempt)
    assert world.ids() == list(range(400))
    assert (first.landed_now, again.landed_now) == (True, False)
    assert len(world.table().snapshots()) == 1
