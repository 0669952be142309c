"""What nodes report, as the driver takes it."""

from trtopt.executors.ray.node import Mailbox


def test_reports_are_taken_in_the_order_in_which_they_came_whatever_submissions_they_are_of() -> None:
    """A job that another had begun beside, and that ended before the driver looked, was not alone."""
    mailbox = Mailbox()
    came = [(1, "node", b"begun"), (2, "node", b"begun"), (3, "node", b"begun"), (1, "node", b"done")]
    for report in came:
        mailbox.put(report)
    assert mailbox.take([2, 1]) == [came[0], came[1], came[3]]
    assert mailbox.take([1, 2]) == []
    assert mailbox.take([3]) == [came[2]]
