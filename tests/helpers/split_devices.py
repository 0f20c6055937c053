"""Devices that tensors only claim, to test LMs on several devices without any.

Within `SplitDevices` tensors claim devices that do not exist, operations that mix them fail, and the values are on the
CPU and can be compared. (Torch's own fake tensors have devices but no values, and abort the process in a backward pass
if torch was built without CUDA.)
"""

import torch
from accelerate.hooks import attach_align_device_hook_on_blocks
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from lre_lightning.models.caches import _METADATA, Joined
from lre_lightning.models.prefix import State

NEAR, FAR = torch.device("cuda:0"), torch.device("cuda:1")
CPU = torch.device("cpu")


def device_of(tensor):
    if isinstance(tensor, State):
        return device_of(tensor.held)
    return device_of(tensor.own) if isinstance(tensor, Joined) else getattr(tensor, "claimed", CPU)


def tensors_in(*values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class SplitDevices(TorchFunctionMode):
    """Give tensors the devices they claim within the context; an operation that mixes devices fails.

    As in torch, scalars and indices on the CPU go with every device, and `Tensor.copy_` copies from everywhere.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function == Tensor.device.__get__:
            return device_of(args[0])
        if State in types and function not in _METADATA:
            with self:
                return State.__torch_function__(function, types, args, kwargs)
        if Joined in types and function not in _METADATA:
            with self:
                return Joined.__torch_function__(function, types, args, kwargs)
        if function is torch.autograd.grad:
            return self.gradients(*args, **kwargs)
        if function is Tensor.to:
            return self.moved(*args, **kwargs)
        if function is Tensor.cpu:
            return self.moved(args[0], CPU)
        device = self.common_device(function, args, kwargs)
        if kwargs.get("device") is not None:
            device, kwargs = torch.device(kwargs["device"]), kwargs | {"device": CPU}
        found = function(*args, **kwargs)
        for tensor in tensors_in(found):
            if not hasattr(tensor, "claimed"):  # an argument that was changed in place has its own
                tensor.claimed = device
        return found

    @staticmethod
    def common_device(function, args, kwargs):
        indices = tensors_in(args[1]) if function in (Tensor.__getitem__, Tensor.__setitem__) else []
        anywhere = {id(index) for index in indices if device_of(index) == CPU}
        if function is Tensor.copy_:
            anywhere.add(id(args[1]))
        used = [tensor for tensor in tensors_in(args, kwargs) if id(tensor) not in anywhere]
        devices = {device_of(tensor) for tensor in used if tensor.ndim or device_of(tensor) != CPU}
        if len(devices) > 1 or (function is Tensor.numpy and devices != {CPU}):
            raise RuntimeError(f"{function.__name__} mixes {devices}")
        return next(iter(devices), CPU)

    @staticmethod
    def gradients(outputs, inputs, grad_outputs=None, **options):
        for output, cotangent in zip(tensors_in(outputs), tensors_in(grad_outputs), strict=False):
            assert device_of(output) == device_of(cotangent)
        found = torch.autograd.grad(outputs, inputs, grad_outputs, **options)
        for gradient, given in zip(found, tensors_in(inputs), strict=True):
            gradient.claimed = device_of(given)
        return found

    @staticmethod
    def moved(tensor, *args, **kwargs):
        wanted = [torch.device(one) for one in (*args, kwargs.get("device")) if isinstance(one, str | torch.device)]
        device = (wanted + [device_of(one) for one in tensors_in(args)] + [device_of(tensor)])[0]
        here = [CPU if isinstance(one, str | torch.device) else one for one in args]
        found = tensor.to(*here, **(kwargs | {"device": CPU} if "device" in kwargs else kwargs))
        if found is not tensor or device != device_of(tensor):
            found = found.clone() if found is tensor else found
            found.claimed = device
        return found


def places(model, far, there, here):
    """A place for every part of a model: `there` for the parts and blocks named in `far`, and `here` for all others."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)]
    blocks = {f"{name}.{index}" for name, module in lists for index in range(len(module)) if name.count(".") == 1}
    names = [name for name, _ in model.named_modules() if name.count(".") == 1 and f"{name}.0" not in blocks]
    return {name: there if name in far else here for name in [*names, *blocks, "lm_head"]}


def split(model, far):
    """Let accelerate place the parts named in `far` on one device and all others on another; both are only claimed."""
    device_map = places(model, far, FAR, NEAR)
    cpu = dict.fromkeys(device_map, "cpu"), dict.fromkeys(device_map, False)
    attach_align_device_hook_on_blocks(model, *cpu, skip_keys=model._skip_keys_device_placement)
    model._hf_hook.execution_device = None
    for name, device in device_map.items():
        for module in model.get_submodule(name).modules():
            if hasattr(module, "_hf_hook"):
                module._hf_hook.execution_device = device
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                tensor.claimed = device
    return model
