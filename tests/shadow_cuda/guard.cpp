// What torch without CUDA lacks to hold tensors of a card: there is one, it is the current one, and it has one stream.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {
namespace {

const Device card{DeviceType::CUDA, 0};

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return card; }
  Device getDevice() const override { return card; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, card); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, card); }
};

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace
}  // namespace at
