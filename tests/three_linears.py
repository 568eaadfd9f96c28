"""A model of three linears with two collectives of one rank between them, for tests that need no process group."""

import torch

HIDDEN = 64
X = torch.ones(2, HIDDEN)


class Model(torch.nn.Module):
    """a, a collective, b, another one, c."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
        self.fail = False
        self.requires_grad_(False)

    def forward(self, hidden_states):
        x = self.a(hidden_states)
        torch.ops.dsv41.emulated_all_reduce(x, 1.0)
        x = self.b(x)
        if self.fail:
            raise ArithmeticError("the model's own")
        torch.ops.dsv41.emulated_all_reduce(x, 1.0)
        return self.c(x)


def signature(prefetcher, num_tokens=2):
    (found,) = [entry for entry in prefetcher.status()["signatures"] if entry["num_tokens"] == num_tokens]
    return found


def segment(index, weight):
    assert weight.data_ptr() % 16 == 0 and weight.nbytes % 16 == 0
    return index, weight.data_ptr(), weight.nbytes
