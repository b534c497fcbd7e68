"""What concerns all tests: which run where.

=======================  =============================================================
tests                    run
=======================  =============================================================
all others               by ``pytest``, the README's test command, with the oldest JAX
``THOROUGH``             by ``pytest -m thorough``: the same with more settings, more
                         formats and whole programs; with the others of its file if
                         that is named on the command line
``SLOW``                 by ``pytest -m slow``: still more of them
but ``OF_ONE_VERSION``   the first of these with the newest JAX, too: the rest hardly
                         depends on JAX
of ``OF_INTERNALS``      with the one in the middle, too: they meet JAX's internals
=======================  =============================================================

``.ci/run`` runs all of these but the slow ones.  The commands stand in docs/contributing.md.
"""

from __future__ import annotations

import jax
import pytest

import repjax  # noqa: F401 - which makes the option

# Their assertions say what was compared, as those of tests do.
pytest.register_assert_rewrite("helpers")

# Files are named without ``test_``, whatever folder they lie in; tests by their file and name, with
# all parameters or with those that are named.
OF_ONE_VERSION = {
    *("amx", "arithmetic", "checkpoint", "comparison", "data", "digest", "eigen", "elementary"),
    *("accumulator", "chen", "exact", "first_tries", "fourier_kernel"),
    *("example", "fuzz", "gpu_benchmark", "gpu_kernels", "guideline", "halves", "linalg"),
    *("language_example", "gpt2_benchmark", "speed_benchmark", "reinforcement_example", "weights"),
    "scaling_benchmark",
    *("chains", "cumulative", "dispute", "entries", "explanation", "graphsage", "groups"),
    *("loops", "replay", "scatter", "segments", "turns"),
    *("native", "order_independent", "partition", "products", "prove", "ptx", "ptx_emulator"),
    *("fpna_study", "repdl_study", "torch_parameters", "workaround_study"),
    *("repdl", "report", "rows", "runs", "samplers", "shapes", "special", "structure"),
    *("two_arguments", "window"),
    *("commitments", "build", "inspection", "manifest", "types", "workflows"),
    *("diagnosis", "docs", "first_difference", "front", "wrong_inputs"),
    "conformance::test_another_instruction_set",
    "settings::test_setting",
    "settings::test_some_in_each_setting",
}
OF_INTERNALS = {
    *("cotangents", "debugging", "export", "fourier", "options", "random", "references"),
    *("refusals", "rows_on_cpu", "switch"),
    *(
        f"settings::test_this_process[{name}]"
        for name in ("arithmetic", "contractions", "halves", "train_one_step", "train_adam")
    ),
}
THOROUGH = {
    "few_terms::test_same_bits",
    *("eigen", "fourier_kernel", "gpu_kernels", "halves", "integers", "linalg", "ptx", "shapes"),
    *("options", "processes", "published", "reference", "repdl", "rows_on_cpu", "special"),
    *("two_arguments", "types", "window", "workaround_study", "wrong_inputs"),
    "accumulator::test_inside_of_programs",
    "comparison::test_requests_that_cannot_be_met",
    "complex::test_derivatives",
    "complex::test_ways_to_run_it",
    "conformance::test_another_instruction_set",
    "conformance::test_the_rest_joins_an_earlier_report",
    "cotangents::test_sums_layer_by_layer_are_noticed",
    "data::test_run_on_idx_files",
    "derivatives::test_derivative_of_lgamma_is_digamma_whose_own_is_polygamma",
    "derivatives::test_hessian",
    "devices::test_control_programs_differ_from_each_other",
    "diagnosis::test_what_cannot_be_diagnosed",
    *(
        f"docs::test_examples_run[{name}.md]"
        for name in ("accuracy", "instruments", "language_models", "layers", "numerics", "repdl")
    ),
    "draws::test_a_key_and_a_number",
    "entries::test_what_is_written_to_inputs",
    "exact::test_dot_general",
    "exact::test_narrow_formats_are_rounded_once",
    "exact::test_what_is_exact_needs_no_test",
    "first_difference::test_both_sides_of_a_trace",
    "first_tries::test_constants_of_pairs_are_those_of_their_script",
    "groups::test_extrema",
    "inside::test_programs",
    "layers::test_lifted_transforms",
    "native::test_blocks",
    "native::test_calls_by_many_programs",
    "nnx_layers::test_methods_of_cells_and_attention",
    "order_independent::test_the_kernel_has_the_bits_of_the_bodies",
    "products::test_convolution_and_its_gradients",
    "reinforcement_example::test_plain_jax_diverges",
    "rewrite::test_an_unrolled_scan_is_its_steps",
    "rows::test_lengths_in_passes",
    "rows::test_lowered_operations",
    "scalars::test_bits_are_those_of_arrays[float16]",
    "scatter::test_extrema_by_the_kernel",
    "scatter::test_one_window",
    "segments::test_network",
    "settings::test_some_in_each_setting",
    *(
        f"settings::test_this_process[{name}]"
        for name in (
            "language_models",
            "order_independent",
            "pooling",
            "reductions",
            "repdl",
            "scanned",
            "scatter_and_scan",
            "torch_layers",
            "train_one_step_eager",
            "train_recurrent",
        )
    ),
    "turns::test_same_bits[<lambda>-lhs3-rhs3-False]",
}
SLOW = {
    "accumulator::test_all_microbatches_and_devices",
    "accumulator::test_kill_9_and_another_number_of_devices",
    "accumulator::test_microbatches_devices_and_arrival",
    "amx::test_in_emulation",
    "chen::test_a_study",
    "chen::test_an_interrupted_study_goes_on_with_the_same_bits",
    "chen::test_cost",
    "chen::test_pictures_are_the_same_for_the_same_results",
    "conformance::test_this_cpu",
    "cotangents::test_models_of_explicit_layers_have_the_sums_of_the_decorator",
    "cotangents::test_second_derivatives",
    "cotangents::test_the_order_of_uses_does_not_matter",
    "debugging::test_options_change_nothing",
    "derivatives::test_ways_to_differentiate",
    "devices::test_programs_over_devices",
    "diagnosis::test_entropy_is_recorded_with_the_diagnosis",
    "diagnosis::test_entropy_that_a_library_draws_is_found",
    "diagnosis::test_no_false_alarm_on_the_examples",
    "dispute::test_another_training",
    "dispute::test_another_training_with_the_equations_of_the_right_one",
    "dispute::test_every_flipped_bit",
    "dispute::test_every_forged_equation",
    "docs::test_examples_print_the_same_bits_on_another_machine",
    "eigen::test_derivatives",
    "eigen::test_kernels",
    "eigen::test_svd",
    "elementary::test_contraction_does_not_matter",
    "exact::test_a_long_axis_of_prefixes_is_shared_by_threads",
    "exact::test_convolutions_and_their_gradients",
    "exact::test_dot_general[normal]",
    "exact::test_kernels_of_prefixes",
    "example::test_another_seed_gives_another_digest",
    "example::test_modes_agree",
    "example::test_order_independent_products",
    "example::test_resume_continues_bit_for_bit",
    "export::test_any_batch",
    "export::test_gradients",
    "export::test_no_kernels",
    "first_difference::test_levels",
    "first_difference::test_plain_jax_on_two_instruction_sets",
    "first_difference::test_two_settings",
    "fourier::test_accuracy",
    "fourier::test_against_the_graph",
    "fourier_kernel::test_rows",
    "front::test_initialisation",
    "fuzz::test_random_programs_have_one_set_of_bits",
    "gpt2_benchmark::test_speed_of_the_small_model",
    "gpu_benchmark::test_smoke_run",
    "gpu_kernels::test_convolution_and_its_gradients",
    "graphsage::test_both_forms_are_one_training_in_sequential_order",
    "graphsage::test_in_pairwise_order_they_are_two",
    "groups::test_random_programs",
    "groups::test_sums_of_computed_terms",
    "guideline::test_the_commands_print_what_the_page_says",
    "halves::test_every_function_on_a_cpu_without_float16",
    "halves::test_every_input_of_every_function",
    "integers::test_convolutions",
    "integers::test_dimensions",
    "integers::test_products",
    "language_example::test_a_resumed_run_goes_on_bit_for_bit",
    "language_example::test_modes_agree",
    "language_example::test_one_bit_of_the_sampler_is_noticed",
    "language_example::test_the_golden_output_on_another_machine",
    "language_models::test_plain_jax_on_eight_devices_is_noticed",
    "language_models::test_random_schedules[llama-bfloat16]",
    "language_models::test_random_schedules[llama-float16]",
    "language_models::test_random_schedules_on_eight_devices",
    "language_models::test_remat_changes_no_bits",
    "layers::test_layers_are_the_stock_layers_made_reproducible",
    "layers::test_modules_of_every_structure[class made by nn.remat]",
    "layers::test_parameters[Bidirectional]",
    "layers::test_parameters[ConvLSTMCell]",
    "layers::test_parameters[ConvLocal]",
    "layers::test_parameters[ConvTranspose]",
    "layers::test_parameters[Conv]",
    "layers::test_parameters[Dense, bfloat16]",
    "layers::test_parameters[DenseGeneral]",
    "layers::test_parameters[GRUCell]",
    "layers::test_parameters[LSTMCell]",
    "layers::test_parameters[MGUCell]",
    "layers::test_parameters[MultiHeadDotProductAttention]",
    "layers::test_parameters[OptimizedLSTMCell]",
    "layers::test_parameters[RNN]",
    "layers::test_parameters[SelfAttention, decoding]",
    "layers::test_parameters[SelfAttention]",
    "layers::test_parameters[Sequential]",
    "layers::test_parameters[SpectralNorm]",
    "library::test_bits_and_values",
    "library::test_the_switch_gives_the_same_program",
    "linalg::test_factors_of_rectangles_by_the_kernel",
    "linalg::test_kernels",
    "native::test_small_products",
    "native::test_sums",
    "networks::test_eager_step",
    "networks::test_reproducible_and_switched_are_the_same",
    "nnx_layers::test_layers",
    "optax::test_all_are_covered",
    "options::test_other_options_change_no_bits",
    "options::test_the_precision_changes_no_bits",
    "options::test_the_precision_changes_no_program_but_by_the_stated_grid",
    "order_independent::test_dimensions",
    "order_independent::test_dimensions_of_convolutions",
    "order_independent::test_infinities_are_counted_by_products_of_int8[3]",
    "order_independent::test_infinities_are_counted_by_products_of_int8[40]",
    "partition::test_random_programs",
    "products::test_a_number_times_an_array_is_a_chain_of_one",
    "ptx::test_tiles",
    "published::test_plain_jax_has_other_bits",
    "published::test_settings",
    *(
        f"published::test_this_process[{name}]"
        for name in ("lenet4", "lenet5", "resnet38", "resnet56", "wrn-28-10")
    ),
    "random::test_generators_of_integers_are_covered",
    "reference::test_halves",
    "reference::test_random_programs",
    "reinforcement_example::test_sampler_and_trainer_agree_in_every_step",
    "reinforcement_example::test_the_golden_output_on_another_machine",
    "repdl::test_adam",
    "repdl::test_every_way_gives_the_same",
    "repdl::test_training",
    "repdl_study::test_the_hashes_are_repdls[SSE4_2 without kernels]",
    "rewrite::test_each_two_operations_on_integers",
    "rewrite::test_long_loops_end_to_be_compiled",
    "rows::test_operations",
    "rows::test_programs_in_passes",
    "rows::test_random_programs",
    "rows_on_cpu::test_operations",
    "rows_on_cpu::test_random_programs",
    "runs::test_a_process_killed_a_thousand_times_loses_no_whole_line",
    "samplers::test_bits",
    "scaling_benchmark::test_a_run",
    "segments::test_over_devices",
    "settings::test_setting",
    "shapes::test_a_variation_changes_bits_or_not",
    "site",
    "special::test_derivatives",
    "speed_benchmark::test_it_measures_here_and_in_another_process",
    "structure::test_wheel_holds_every_package",
    "two_arguments::test_contraction_does_not_matter",
    "workaround_study::test_both_forms_are_one_training_and_it_goes_on",
    "workaround_study::test_platforms",
    "workaround_study::test_the_whole_study",
    "x64::test_draws",
    "x64::test_training",
    "x64::test_training_in_other_ways",
}
#: They take minutes in processes of their own: begun first, none is left alone at the end.
LONG = (
    *("test_settings.py::test_setting[", "test_settings.py::test_some_in_each_setting["),
    *("test_structure.py::test_wheel", "test_halves.py::"),
)


MARKS = {
    "thorough": THOROUGH,
    "slow": SLOW,
    "of_one_version": OF_ONE_VERSION,
    "of_internals": OF_INTERNALS,
}


def pytest_configure(config) -> None:
    """What is asked for by the name of its file is run with what is thorough."""
    if not any(".py" in argument for argument in config.invocation_params.args):
        return
    if config.option.markexpr == "not slow and not thorough":
        config.option.markexpr = "not slow"


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        file = item.path.stem.removeprefix("test_")
        name = f"{file}::{item.name}"
        for mark, names in MARKS.items():
            if not names.isdisjoint((file, name, name.partition("[")[0])):
                item.add_marker(mark)
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONG))


@pytest.fixture(autouse=True)
def switched_off_again():
    """What one test switches on would be on in all that follow in its process."""
    yield
    if jax.config.read("repjax_enable"):
        jax.config.update("repjax_enable", False)
        pytest.fail("expected repjax_enable to be off after the test, received on")
