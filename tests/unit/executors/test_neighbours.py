"""What else ran on a host while a job did."""

from trtopt.executors.neighbours import Neighbours


def test_neighbours_are_those_of_the_same_host_at_the_same_time() -> None:
    hosts = Neighbours()
    hosts.began(0, "a", "building x")
    hosts.began(1, "a", "measuring y")
    hosts.began(2, "b", "building elsewhere")
    assert hosts.ended(0) == ("measuring y",)
    hosts.began(3, "a", "building z")
    assert hosts.ended(1) == ("building x", "building z")
    hosts.began(4, "a", "building last")
    assert hosts.ended(4) == ("building z",)
    assert hosts.ended(2) == ()


def test_what_has_finished_its_work_is_no_neighbour_of_what_begins() -> None:
    hosts = Neighbours()
    hosts.began(0, "a", "measuring x")
    hosts.finished(0)
    hosts.began(1, "a", "measuring y")
    assert hosts.ended(0) == hosts.ended(1) == ()
