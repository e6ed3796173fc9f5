#pragma once
// All kernels, X(name): the emulation finds them by this list, nvcc's image by its symbols (all.h defines them).

// clang-format off: a line for each family
#define GALLEY_CUDA_KERNELS(X) \
  X(elementwise1_packs) X(elementwise2_packs) X(elementwise_backward_packs) \
  X(elementwise1) X(elementwise2) X(elementwise3) X(elementwise1_double) X(elementwise2_double) \
  X(elementwise3_double) X(elementwise_backward) X(elementwise_backward_double) X(chain_elements) \
  X(copy_1) X(copy_2) X(copy_4) X(copy_8) X(copy_16) X(copy_tiles_1) X(copy_tiles_2) X(copy_tiles_4) X(copy_tiles_8) \
  X(fill_1) X(fill_2) X(fill_4) X(fill_8) X(cast_elements) X(cast_quads) X(normalize_pixels) \
  X(gather_elements) X(scatter_add_elements) X(scatter_largest_parts) \
  X(scatter_add_fixed) X(scatter_sums) X(one_hot_elements) X(iota_elements) X(lookup_elements) X(random_words) X(dropout_elements) \
  X(cache_heads) X(attend_cached) X(write_cache) \
  X(attention_64) X(attention_128) X(attention_256) X(attention_along) X(attention_queries_64) X(attention_queries_128) \
  X(attention_queries_256) X(attention_keys_64) X(attention_keys_128) X(attention_keys_256) X(attention_bias) \
  X(softmax_lines) X(softmax_backward_lines) X(layer_norm_packs) X(layer_norm_backward_pack) \
  X(layer_norm_backward_packs) X(layer_norm_backward_sums) X(layer_norm_rows) X(layer_norm_backward_rows) X(layer_norm_partial_sums) \
  X(layer_norm_sums) X(batch_norm_parts) X(batch_norm_statistics) X(batch_norm_of_sums) X(batch_norm_values) \
  X(batch_norm_backward_parts) X(batch_norm_backward_sums) X(batch_norm_backward_values) X(batch_norm_update_channels) \
  X(finite_gate_value) X(adam_step) X(sgd_step) X(adam_steps) X(sgd_steps) X(ema_step) X(ema_steps) \
  X(reduce_channels) X(reduce_channel_parts) X(reduce_threads) X(reduce_threads_integer) X(reduce_blocks) X(reduce_blocks_integer) \
  X(gelu_backward_sums) \
  X(matmul_tiles) X(conv2d_direct) X(convolution_epilogue) X(epilogue_packs) \
  X(conv2d_backward_data_direct) X(conv2d_backward_weights_direct) \
  X(max_pool) X(max_pool_backward) X(average_pool) X(average_pool_backward) X(largest_elements) X(rotary_rows) X(resize_pixels) \
  X(resize_backward_pixels) X(cross_entropy_positions) X(cross_entropy_rows) X(cross_entropy_total) X(cross_entropy_weights) \
  X(cross_entropy_backward_positions) X(cross_entropy_backward_rows) X(embedding_words_2) X(embedding_words_4) \
  X(embedding_words_16) X(embedding_ranks) X(embedding_begins) X(embedding_order) X(embedding_packs) X(embedding_rows) \
  X(square_parts) X(square_total) X(copy_lines) \
  X(quantize_elements) X(dequantize_elements) X(quantized_pairs) X(range_parts) X(quantize_by_range) X(quantized_tiles) \
  X(quantized_conv2d_direct) X(pack_integers) X(pack_integer_weights) X(integer_results) \
  X(round_to_f8_elements) X(f8_weights) X(pack_f8) X(pack_f8_weights) X(f8_product_tiles) X(f8_results) \
  X(stored_weights) X(stored_linear_rows) X(quantized_pool) X(matmul_tiles_double) \
  X(nms_samples) X(grid_boxes_cells) X(best_anchors) X(match_anchors) X(match_anchor_centers) X(top_mask_rows) X(take_box_rows) \
  X(append_object_rows) X(sample_label_rows) X(true_row_places) \
  X(roi_pool_bins) X(mask_target_cells) X(keypoint_cell_points) X(locate_keypoint_maps) \
  X(roi_bins) X(roi_backward_pixels) X(largest_parts) X(largest_of_parts) X(fixed_sums) X(grid_sample_pixels) \
  X(grid_sample_backward_points) X(grid_sample_backward_grid_points) X(correlation_values) X(correlation_backward_first_values) \
  X(correlation_backward_level_values) \
  X(convex_pixels) X(convex_backward_pixels) X(convex_backward_logits) X(orthonormal_column_block)
// clang-format on
