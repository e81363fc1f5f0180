"""Published values find their place by code, and a wrong declaration is named."""

import pytest

from turnscale.config.schema import Published
from turnscale.errors import ConfigError, DataError
from turnscale.estimates.published import local_metric, parse_params, published_values

FULL = "pass@1,MPO,lambda=0.80;lambda_intra=0.95;beta=1.00,48.08,percent,s,exact,"
HEADER = "study,table,model,benchmark,metric,method,params,value,unit,source_seed,status,derivation\n"
MPO = {
    "credit": {"name": "multiscale", "lam": 0.8, "lam_intra": 0.95, "beta": 1.0},
    "ratio": {"name": "turn"},
}


def variant(**credit):
    return {**MPO, "credit": {**MPO["credit"], **credit}}


def write(tmp_path, rows):
    (tmp_path / "p.csv").write_text(
        HEADER + "".join(f"S,T1,Big,Bench,{row}\n" for row in rows), encoding="utf-8"
    )


def declare(**options):
    return Published(file="p.csv", models={"tiny": "Big"}, benchmarks={"local": "Bench"}, **options)


def test_metric_names():
    assert local_metric("pass@32") == "pass_at_32"
    assert local_metric("pass^3") == "pass_hat_3"
    assert local_metric("average success") is None


def test_params():
    assert parse_params("lambda=0.80;beta=1") == {"lambda": 0.8, "beta": 1.0}
    assert parse_params("") == {}
    with pytest.raises(ValueError):
        parse_params("lambda:0.8")


def test_named_methods_match_and_others_stand_alone(tmp_path):
    write(
        tmp_path,
        [
            "pass@1,MPO,lambda=0.80;lambda_intra=0.95;beta=1.00,48.08,percent,s,exact,",
            "pass@1,SAO,,0.4375,fraction,s,derived,a-b",
        ],
    )
    found = published_values(
        declare(cells={"mpo": "MPO", "ppo": "PPO"}), {"mpo": MPO, "ppo": {}}, "mpo", tmp_path
    )
    assert [(v.cell, v.method, v.metric, v.model, v.benchmark) for v in found] == [
        ("mpo", "MPO", "pass_at_1", "tiny", "local"),
        ("", "SAO", "pass_at_1", "tiny", "local"),
    ]
    assert [v.value for v in found] == pytest.approx([0.4808, 0.4375])
    assert found[1].source == "p.csv: S, T1; Big on Bench (derived: a-b)"


def test_a_named_method_with_other_parameters_does_not_match(tmp_path):
    write(tmp_path, ["pass@1,MPO,lambda=0.80;lambda_intra=0.95;beta=1.00,48.08,percent,s,exact,"])
    found = published_values(declare(cells={"mpo": "MPO"}), {"mpo": variant(beta=0.5)}, "mpo", tmp_path)
    assert [(v.cell, v.method) for v in found] == [("", "MPO (lambda=0.80;lambda_intra=0.95;beta=1.00)")]


def test_ablations_match_by_parameters_alone(tmp_path):
    write(
        tmp_path,
        [
            "pass@1,MPO,lambda=0.85;lambda_intra=0.95;beta=1,46.36,percent,s,derived,",
            "pass@1,MPO,lambda=0.80;lambda_intra=0.95;beta=0,41.8,percent,s,exact,",
            "pass@1,MPO,lambda=0.80;lambda_intra=0.95;beta=1.00,48.08,percent,s,exact,",
        ],
    )
    methods = {
        "mpo": MPO,
        "wide": variant(lam=0.85),
        "zero": variant(beta=0),
        "token": {**MPO, "ratio": {"name": "token"}},
        "unpublished": variant(beta=2.0),
    }
    found = published_values(declare(), methods, "mpo", tmp_path)
    assert {v.cell: v.value for v in found} == pytest.approx({"wide": 0.4636, "zero": 0.418, "mpo": 0.4808})


def test_unknown_values_are_skipped_and_two_different_ones_refused(tmp_path):
    write(tmp_path, ["pass@1,MPO,,,percent,s,unknown,", "pass@1,MPO,,48.08,percent,s,exact,"])
    declaration = declare(cells={"mpo": "MPO"})
    assert len(published_values(declaration, {"mpo": MPO}, "mpo", tmp_path)) == 1
    write(tmp_path, ["pass@1,MPO,,40,percent,s,exact,", "pass@1,MPO,,48.08,percent,s,exact,"])
    with pytest.raises(DataError, match="two values"):
        published_values(declaration, {"mpo": MPO}, "mpo", tmp_path)


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ("pass@1,MPO,,48.08,points,s,exact,", "unit"),
        ("pass@1,MPO,,much,percent,s,exact,", "value"),
        ("pass@1,MPO,beta,48.08,percent,s,exact,", "params"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, key):
    write(tmp_path, [row])
    with pytest.raises(DataError, match="line 2") as caught:
        published_values(declare(cells={"mpo": "MPO"}), {"mpo": MPO}, "mpo", tmp_path)
    assert caught.value.key == key


def test_a_name_that_the_file_lacks_is_named(tmp_path):
    write(tmp_path, ["pass@1,MPO,,48.08,percent,s,exact,"])
    wrong = Published(file="p.csv", models={"tiny": "Bigger"}, benchmarks={"local": "Bench"})
    with pytest.raises(ConfigError, match="Bigger"):
        published_values(wrong, {"mpo": MPO}, "mpo", tmp_path)
    with pytest.raises(DataError, match="no such file"):
        published_values(Published(file="absent.csv"), {}, None, tmp_path)
