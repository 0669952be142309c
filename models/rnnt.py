"""RNN transducer (Graves 2012, arXiv:1211.3711) in the shape of MLPerf Inference: three networks.

The encoder runs once over the sound, the prediction network once for each emitted token, the joint network
once for each step of the greedy search, which the caller drives.
"""

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """LSTM layers, every two frames joined into one, more LSTM layers."""

    def __init__(self, features: int, hidden: int, before: int, after: int) -> None:
        super().__init__()
        self.before = nn.LSTM(features, hidden, before, batch_first=True)
        self.after = nn.LSTM(2 * hidden, hidden, after, batch_first=True)

    def forward(self, frames: Tensor) -> Tensor:
        """[N, T, features], T even → [N, T/2, hidden]."""
        x, _ = self.before(frames, self._still(self.before, frames))
        x = x.unflatten(1, (-1, 2)).flatten(2)
        x, _ = self.after(x, self._still(self.after, frames))
        return x

    def _still(self, layers: nn.LSTM, frames: Tensor) -> tuple[Tensor, Tensor]:
        """States of zeros, for as many samples as there are: left out, tracing would fix the batch."""
        zeros = frames.new_zeros(layers.num_layers, frames.shape[0], layers.hidden_size)
        return zeros, zeros


class Prediction(nn.Module):
    """One step over the token emitted last."""

    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)

    def forward(self, token: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, 1] and states [N, layers, hidden] twice → [N, 1, hidden] and the new states."""
        state = (hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous())
        out, (hidden, cell) = self.lstm(self.embed(token), state)
        return out, hidden.transpose(0, 1), cell.transpose(0, 1)


class Joint(nn.Module):
    """Scores of every token and the blank for one frame and one prediction."""

    def __init__(self, encoder: int, prediction: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(encoder + prediction, hidden)
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, frame: Tensor, prediction: Tensor) -> Tensor:
        """[N, encoder] and [N, prediction] → logits [N, vocabulary]."""
        return self.out(torch.relu(self.hidden(torch.cat([frame, prediction], dim=-1))))


def encoder(**sizes: int) -> Encoder:
    """MLPerf: 240 features, hidden 1024, 2 layers before and 3 after."""
    return Encoder(**sizes)


def prediction(**sizes: int) -> Prediction:
    """MLPerf: 28 characters and the start, hidden 320, 2 layers."""
    return Prediction(**sizes)


def joint(**sizes: int) -> Joint:
    """MLPerf: 1024 and 320 in, hidden 512, 28 characters and the blank out."""
    return Joint(**sizes)
