// Operations on the pixels of one uint8 image, in planes, with the names and meaning of
// torchvision's functions on tensors (torchvision.transforms.v2.functional). Results differ from
// torchvision's by at most one level.
//
// Thread-safety: each thread has its own PixelScratch; the functions are pure except for the image.
// All SIMD paths give equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// 1 or 3 consecutive planes of height x width bytes. Does not own them.
struct Planes {
  std::uint8_t* data = nullptr;
  int channels = 3;
  std::int32_t height = 0, width = 0;

  std::size_t pixels() const {
    return static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
  }
  std::size_t bytes() const { return pixels() * static_cast<std::size_t>(channels); }
  std::uint8_t* plane(int c) const { return data + pixels() * static_cast<std::size_t>(c); }
};

// The operations change the image in place. Factors must be at least 0. Operations on colours have
// no effect on images of one channel.
void adjust_brightness(const Planes& image, double factor);
void adjust_contrast(const Planes& image, double factor);
void adjust_saturation(const Planes& image, double factor);
void adjust_hue(const Planes& image, double turns);  // in [-0.5, 0.5] full turns
void posterize(const Planes& image, int bits);       // 0 to 8
void solarize(const Planes& image, double threshold);
void invert(const Planes& image);
void autocontrast(const Planes& image);
void equalize(const Planes& image);
void grayscale(const Planes& image);  // keeps the number of channels

// Frees the memory of a vector if it takes more than `keep` bytes.
template <typename T>
void shrink(std::vector<T>& scratch, std::size_t keep) {
  if (scratch.capacity() * sizeof(T) > keep) std::vector<T>().swap(scratch);
}

// The operations that need scratch memory, which the object keeps between images.
class PixelScratch {
 public:
  void adjust_sharpness(const Planes& image, double factor);
  // columns, rows: the size of the kernel, odd. sigma_x, sigma_y: standard deviations in pixels.
  // Edges are reflected without repeating the edge pixel, so the image must be wider and higher
  // than half of the kernel.
  void gaussian_blur(const Planes& image, int columns, int rows, double sigma_x, double sigma_y);
  // Frees scratch memory of more than `keep` bytes, as after an unusually large image.
  void shrink(std::size_t keep);

 private:
  void sharpen_much(const Planes& image, double factor);

  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint16_t> samples_, row_;
  std::vector<const std::uint16_t*> taps_;
};

}  // namespace fastio
