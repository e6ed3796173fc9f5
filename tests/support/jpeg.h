#pragma once
// Writes JPEG files in memory, in every form that readers must support.

#include <jpeglib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace galley::test {

struct JpegForm {
  int quality = 90;
  int sampling = 2;   ///< 2: chroma at half the size in both directions; 1: at full size.
  bool gray = false;  ///< One channel instead of three.
  bool progressive = false;
  bool scan_a_channel = false;  ///< Sequential, with a separate scan per component.
  int restart_every = 0;        ///< MCUs between restart markers; 0: none.
};

/// Encodes interleaved 8-bit pixels. libjpeg-turbo ends the process on errors.
inline std::vector<std::byte> encode_jpeg(const uint8_t* pixels, int64_t height, int64_t width, const JpegForm& form = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &data, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = form.gray ? 1 : 3;
  info.in_color_space = form.gray ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, form.quality, TRUE);
  info.comp_info[0].h_samp_factor = info.comp_info[0].v_samp_factor = form.gray ? 1 : form.sampling;
  info.restart_interval = static_cast<unsigned>(form.restart_every);
  jpeg_scan_info scans[3] = {};
  if (form.progressive) jpeg_simple_progression(&info);
  if (form.scan_a_channel) {
    for (int c = 0; c < 3; ++c) {
      scans[c].comps_in_scan = 1;
      scans[c].component_index[0] = c;
      scans[c].Se = DCTSIZE2 - 1;
    }
    info.scan_info = scans;
    info.num_scans = 3;
  }
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = const_cast<uint8_t*>(pixels) + static_cast<int64_t>(info.next_scanline) * width * info.input_components;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(bytes, bytes + size);
  std::free(data);
  return file;
}

}  // namespace galley::test
