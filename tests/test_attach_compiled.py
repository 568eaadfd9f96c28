"""`attach` and torch.compile together: what is learned through compiled code, and what is reported where it is not."""

import pytest
import torch
from three_linears import Model, X, segment, signature

import dsv41_l2pf
from dsv41_l2pf import compile_backend


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def planned(prefetcher):
    return prefetcher.plan_segments(2)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_an_attached_compiled_model_gets_all_windows(model, backend):
    expected = model(X)
    compiled = torch.compile(model, backend=backend)
    prefetcher = dsv41_l2pf.attach(compiled)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), expected)
    found = signature(prefetcher)
    assert (found["state"], found["num_collectives"], found["num_windows"]) == ("planned", 2, 2)
    assert planned(prefetcher) == [segment(0, model.b.weight), segment(1, model.c.weight)]
    assert found["num_launched"] == 2
    assert prefetcher.status()["hidden_weights"] == {}


def test_windows_continue_from_one_compiled_region_to_the_next(model):
    """The weights behind the last collective of a region are in the next one, which no single graph can see."""

    class Region(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            x = self.linear(x)
            torch.ops.dsv41.emulated_all_reduce(x, 1.0)
            return x

    regions = torch.nn.Sequential(*map(Region, (model.a, model.b, model.c)))
    expected = regions(X)
    for region in regions:
        region.compile(backend=compile_backend(inner="eager"))
    prefetcher = dsv41_l2pf.attach(regions)
    assert all(torch.equal(regions(X), expected) for _ in range(3))
    assert planned(prefetcher) == [segment(0, model.b.weight), segment(1, model.c.weight)]
    assert signature(prefetcher)["num_launched"] == 2


class Scaled(torch.nn.Module):
    """Inductor fuses the reading of `scale` and `shift` into kernels of its own."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(2, 64), requires_grad=False)
        self.shift = torch.nn.Parameter(torch.rand(2, 64), requires_grad=False)

    def forward(self, x):
        y = x * 2
        torch.ops.dsv41.emulated_all_reduce(y, 1.0)
        return torch.relu(y * self.scale) + self.shift


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def by_torch_compile(module, **options):
    return torch.compile(module, **options)


def by_compile(module, **options):
    module.compile(**options)
    return module


def by_its_forward(module, **options):
    module.forward = torch.compile(module.forward, **options)
    return module


@pytest.mark.parametrize("how", [by_torch_compile, by_compile, by_its_forward])
def test_what_compiled_code_hides_is_reported_with_advice(how):
    model = Around(how(Scaled()))
    prefetcher = dsv41_l2pf.attach(model)
    assert prefetcher.status()["hidden_weights"] == {}  # nothing was learned yet
    model(X), model(X)
    hidden = prefetcher.status()["hidden_weights"]
    assert [name.rpartition(".")[2] for name in hidden] == ["scale", "shift"] and set(hidden.values()) == {2 * 64 * 4}
    report = " ".join(str(prefetcher.report()).split())
    assert "not planned, torch.compile hides who reads it (0.00 MiB; compile with backend='dsv41' to plan it)" in report


@pytest.mark.parametrize("how", [by_torch_compile, by_compile, by_its_forward])
def test_the_advice_helps(how):
    inner = Scaled()
    expected = inner(X) + 1
    model = Around(how(inner, backend="dsv41"))
    prefetcher = dsv41_l2pf.attach(model)
    for _ in range(3):
        torch.testing.assert_close(model(X), expected)
    assert prefetcher.status()["hidden_weights"] == {}
    assert planned(prefetcher) == [segment(0, inner.scale), segment(0, inner.shift)]


def test_a_model_compiled_with_its_hook_inside_says_so(model):
    expected = model(X)
    prefetcher = dsv41_l2pf.attach(model)
    assert prefetcher.status()["reason"] == ""
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(X), expected)
    assert prefetcher.status()["reason"].startswith("torch.compile took the model with its hook inside: attach what")
    assert "prefetching is off: torch.compile took the model" in str(prefetcher.report())


def test_a_model_compiled_with_its_hook_inside_still_gets_the_windows_of_the_backend(model):
    expected = model(X)
    dsv41_l2pf.attach(model)
    dsv41_l2pf.compile.clear_reports()
    compiled = torch.compile(model, backend=compile_backend(inner="aot_eager"), fullgraph=True)
    assert torch.equal(compiled(X), expected)
    (report,) = dsv41_l2pf.compile.reports()
    assert [window.weights for window in report.windows] == [("b.weight",), ("c.weight",)]
