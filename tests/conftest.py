"""What concerns all tests: which run where.

==============================  ==========================================================
tests                           run
==============================  ==========================================================
all others                      by ``pytest``, which is the README's test command, with the
                                oldest JAX; with the newest; with the one in the middle
of ``OF_ONE_VERSION``           not with the newest, nor the one in the middle: they hardly
                                depend on JAX
of ``NOT_IN_THE_MIDDLE``        not with the one in the middle, whose internals they do not
                                need
``SLOW``                        with the newest alone, and by ``pytest -m ""``: half of the
                                time, for other data and settings of what the others test
==============================  ==========================================================

``.ci/run`` runs all of these.
"""

from __future__ import annotations

import pytest

# Their assertions say what was compared, as those of tests do.
pytest.register_assert_rewrite("helpers")

#: Tests are named by their file, without ``test_``, whatever folder it lies in.
OF_ONE_VERSION = (
    *("amx", "data", "digest", "elementary", "example", "fuzz", "gpu_benchmark", "native"),
    *("eigen", "order_independent", "partition", "prove", "special", "two_arguments"),
)
NOT_IN_THE_MIDDLE = (
    *("gpu_kernels", "groups", "halves", "integers", "lenet", "library", "linalg", "narrow"),
    *("options", "ptx", "ptx_emulator", "repdl", "rows", "rows_on_cpu", "samplers", "scatter"),
    *("window", "x64"),
)
#: Of tests by name, with all parameters or with those that are named.
SLOW = {
    "amx::test_in_emulation",
    "cotangents::test_the_order_of_uses_does_not_matter",
    "debugging::test_options_change_nothing",
    "docs::test_examples_print_the_same_bits_on_another_machine",
    "eigen::test_kernels",
    "elementary::test_contraction_does_not_matter",
    "example::test_another_seed_gives_another_digest",
    "example::test_order_independent_products",
    "example::test_resume_continues_bit_for_bit",
    "export::test_gradients",
    "export::test_no_kernels",
    "fourier::test_accuracy",
    "fourier::test_against_the_graph",
    "front::test_initialisation",
    "fuzz::test_random_programs_have_one_set_of_bits",
    "gpu_benchmark::test_smoke_run",
    "gpu_kernels::test_convolution_and_its_gradients",
    "groups::test_sums_of_computed_terms",
    "halves::test_every_function_on_a_cpu_without_float16",
    "integers::test_convolutions",
    "library::test_the_switch_gives_the_same_program",
    "linalg::test_factors_of_rectangles_by_the_kernel",
    "linalg::test_kernels",
    "native::test_sums",
    "optax::test_all_are_covered",
    "options::test_other_options_change_no_bits",
    "options::test_the_precision_changes_no_bits",
    "order_independent::test_dimensions_of_convolutions",
    "random::test_generators_of_integers_are_covered",
    "repdl::test_training",
    "runs::test_a_process_killed_a_thousand_times_loses_no_whole_line",
    "rows::test_operations",
    "samplers::test_bits",
    "settings::test_setting[AVX-2-8]",
    "settings::test_setting[AVX2-1-1]",
    "special::test_derivatives",
    "structure::test_wheel_holds_every_package",
    "x64::test_draws",
    "x64::test_training",
}
#: They take minutes in processes of their own: begun first, none is left alone at the end.
LONG = ("test_settings.py::test_setting[", "test_structure.py::test_wheel", "test_halves.py::")


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        file = item.path.stem.removeprefix("test_")
        name = f"{file}::{item.name}"
        if name in SLOW or name.partition("[")[0] in SLOW:
            item.add_marker(pytest.mark.slow)
        if file in OF_ONE_VERSION:
            item.add_marker(pytest.mark.of_one_version)
        if file in NOT_IN_THE_MIDDLE:
            item.add_marker(pytest.mark.not_in_the_middle)
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))
