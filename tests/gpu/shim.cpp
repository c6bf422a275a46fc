// Registers CUDA's device guard and hooks with a CPU build of torch: devices exist, kernels do not.
// The library must be loaded before torch asks for the hooks the first time.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cstdlib>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

DeviceIndex number(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return static_cast<DeviceIndex>(value ? std::atoi(value) : otherwise);
}

const DeviceIndex COUNT = number("PRETENDED_GPUS", 1);
const DeviceIndex CURRENT = COUNT ? number("LOCAL_RANK", 0) % COUNT : 0;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device current() const { return Device(DeviceType::CUDA, CURRENT); }
  Device exchangeDevice(Device) const override { return current(); }
  Device getDevice() const override { return current(); }
  DeviceIndex deviceCount() const noexcept override { return COUNT; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, current()); }
  Stream getNewStream(Device, int = 0) const override { return Stream(Stream::DEFAULT, current()); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, current()); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return COUNT; }
  DeviceIndex getCurrentDevice() const override { return CURRENT; }
  int getNumGPUs() const override { return COUNT; }
};

}  // namespace

namespace at {
namespace {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", ::Hooks)
const int registered = [] {
  static ::Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(&guard);
  return 0;
}();
}  // namespace
}  // namespace at

extern "C" int pretended_gpus() { return at::detail::getCUDAHooks().deviceCount(); }
