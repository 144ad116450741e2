// JPEG files made by libjpeg, and what libjpeg itself makes of a file: what our decoder is held to.
#pragma once

// jpeglib.h needs FILE and size_t declared before it.
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <jpeglib.h>

namespace fastio::test {

using Bytes = std::vector<std::uint8_t>;

struct Sampling {
  int h, v;
};

struct JpegOptions {
  int height = 16, width = 16;
  int components = 3;
  Sampling sampling[4] = {{1, 1}, {1, 1}, {1, 1}, {1, 1}};
  int quality = 75;
  bool optimise = false;
  bool progressive = false;
  bool arithmetic = false;
  bool apart = false;        // one scan a component
  bool four_tables = false;  // a pair of Huffman tables for each of the first components
  int restart_interval = 0;  // MCUs
  double noise = 20;
  int level = -1;  // of every sample; -1: a picture with `noise`
};

inline std::string describe(const JpegOptions& o) {
  std::ostringstream text;
  text << o.height << " x " << o.width << ", quality " << o.quality << ", sampling";
  for (int i = 0; i < o.components; ++i) text << ' ' << o.sampling[i].h << 'x' << o.sampling[i].v;
  if (o.optimise) text << ", optimised";
  if (o.progressive) text << ", progressive";
  if (o.arithmetic) text << ", arithmetic";
  if (o.apart) text << ", one scan a component";
  if (o.four_tables) text << ", four tables";
  text << ", restart interval " << o.restart_interval;
  return text.str();
}

// Smooth colours with noise: uint8 (height, width, components).
inline Bytes picture(int height, int width, int components, double noise, std::uint32_t seed) {
  std::mt19937 rng(seed);
  Bytes pixels(static_cast<std::size_t>(height) * width * components);
  double slope[4][3];
  for (auto& of_component : slope)
    for (double& value : of_component) value = static_cast<double>(rng() % 1000) / 1000;
  std::size_t at = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < components; ++c) {
        const double waves = slope[c][0] * (y % 64) * 4 + slope[c][1] * (x % 50) * 5;
        const double value =
            waves * slope[c][2] + noise * (static_cast<double>(rng() % 201) - 100) / 100;
        pixels[at++] = static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
      }
    }
  }
  return pixels;
}

inline Bytes make_jpeg(const JpegOptions& o, std::uint32_t seed) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(o.height);
  info.image_width = static_cast<JDIMENSION>(o.width);
  info.input_components = o.components;
  info.in_color_space = o.components == 1   ? JCS_GRAYSCALE
                        : o.components == 3 ? JCS_RGB
                        : o.components == 4 ? JCS_CMYK
                                            : JCS_UNKNOWN;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, o.quality, TRUE);
  info.optimize_coding = !o.arithmetic && (o.optimise || o.four_tables) ? TRUE : FALSE;
  info.arith_code = o.arithmetic ? TRUE : FALSE;
  info.restart_interval = static_cast<unsigned>(o.restart_interval);
  for (int i = 0; i < o.components; ++i) {
    info.comp_info[i].h_samp_factor = o.sampling[i].h;
    info.comp_info[i].v_samp_factor = o.sampling[i].v;
    if (o.four_tables) info.comp_info[i].dc_tbl_no = info.comp_info[i].ac_tbl_no = i;
  }
  jpeg_scan_info scans[4] = {};
  if (o.apart) {
    for (int i = 0; i < o.components; ++i) scans[i] = {1, {i}, 0, 63, 0, 0};
    info.scan_info = scans;
    info.num_scans = o.components;
  }
  if (o.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  const std::size_t stride = static_cast<std::size_t>(o.width) * o.components;
  Bytes pixels = o.level < 0 ? picture(o.height, o.width, o.components, o.noise, seed)
                             : Bytes(stride * o.height, static_cast<std::uint8_t>(o.level));
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + info.next_scanline * stride;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  Bytes file(memory, memory + size);
  std::free(memory);
  return file;
}

// Options of any kind that one sequential scan can have.
inline JpegOptions random_options(std::mt19937& rng) {
  const auto one_of = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng);
  };
  JpegOptions o;
  o.height = one_of(1, one_of(1, 4) == 1 ? 200 : 40);
  o.width = one_of(1, one_of(1, 4) == 1 ? 200 : 40);
  o.components = one_of(1, 5) == 1 ? 1 : 3;
  // The first component has the finest samples, by a whole factor: libjpeg makes no others.
  const auto part = [&](int of) {
    for (int value;;)
      if (value = one_of(1, of); of % value == 0) return value;
  };
  for (int blocks = 11; blocks > 10;) {
    o.sampling[0] = {one_of(1, 4), one_of(1, 4)};
    blocks = o.sampling[0].h * o.sampling[0].v;
    for (int i = 1; i < o.components; ++i) {
      o.sampling[i] = {part(o.sampling[0].h), part(o.sampling[0].v)};
      blocks += o.sampling[i].h * o.sampling[i].v;
    }
  }
  o.quality = one_of(1, 100);
  o.optimise = one_of(0, 1);
  o.four_tables = one_of(0, 3) == 0;
  o.restart_interval = one_of(0, 2) ? 0 : one_of(1, 5);
  o.noise = one_of(0, 1) ? 3 : 120;
  return o;
}

// What libjpeg makes of a file.
struct Decoded {
  bool ok = false;  // false: an error, so that nothing else is set
  long warnings = 0;
  int height = 0, width = 0, channels = 0;
  Bytes pixels;                                         // (height, width, channels)
  std::vector<std::vector<std::int16_t>> coefficients;  // of each component, 64 a block
};

namespace detail {

struct Escape {
  jpeg_error_mgr base;  // first, so that libjpeg's pointer is ours
  std::jmp_buf target;
};

[[noreturn]] inline void on_error(j_common_ptr info) {
  std::longjmp(reinterpret_cast<Escape*>(info->err)->target, 1);
}

inline void on_message(j_common_ptr info, int level) {
  if (level < 0) ++info->err->num_warnings;
}

inline void read_pixels(jpeg_decompress_struct& info, int denominator, Decoded& out) {
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(denominator);
  info.out_color_space = info.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  out.height = static_cast<int>(info.output_height);
  out.width = static_cast<int>(info.output_width);
  out.channels = info.output_components;
  const std::size_t stride = static_cast<std::size_t>(out.width) * out.channels;
  out.pixels.resize(stride * static_cast<std::size_t>(out.height));
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = out.pixels.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
}

inline void read_coefficients(jpeg_decompress_struct& info, Decoded& out) {
  jvirt_barray_ptr* arrays = jpeg_read_coefficients(&info);
  out.coefficients.resize(static_cast<std::size_t>(info.num_components));
  for (int i = 0; i < info.num_components; ++i) {
    const jpeg_component_info& c = info.comp_info[i];
    for (JDIMENSION y = 0; y < c.height_in_blocks; ++y) {
      JBLOCKARRAY rows = info.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&info),
                                                      arrays[i], y, 1, FALSE);
      const JCOEF* first = rows[0][0];
      out.coefficients[static_cast<std::size_t>(i)].insert(
          out.coefficients[static_cast<std::size_t>(i)].end(), first,
          first + std::size_t{64} * c.width_in_blocks);
    }
  }
}

template <typename Read>
void with_libjpeg(const Bytes& file, Decoded& out, Read read) {
  static jpeg_decompress_struct info;  // static: longjmp leaves locals undefined
  static Escape errors;
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = on_error;
  errors.base.emit_message = on_message;
  if (setjmp(errors.target) == 0) {
    jpeg_create_decompress(&info);
    jpeg_mem_src(&info, file.data(), static_cast<unsigned long>(file.size()));
    jpeg_read_header(&info, TRUE);
    read(info);
    out.warnings = errors.base.num_warnings;
    out.ok = true;
  }
  jpeg_destroy_decompress(&info);
}

}  // namespace detail

inline Decoded decode_fully(const Bytes& file, int denominator) {
  Decoded out;
  detail::with_libjpeg(file, out, [&](jpeg_decompress_struct& info) {
    detail::read_pixels(info, denominator, out);
  });
  return out;
}

inline Decoded decode_coefficients(const Bytes& file) {
  Decoded out;
  detail::with_libjpeg(file, out,
                       [&](jpeg_decompress_struct& info) { detail::read_coefficients(info, out); });
  return out;
}

}  // namespace fastio::test
