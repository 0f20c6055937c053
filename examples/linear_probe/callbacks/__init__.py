"""This project's callbacks."""

import lightning as L


class PrintAccuracy(L.Callback):
    """Print the accuracy of the probe at the end."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print once, for all devices."""
        if trainer.is_global_zero:
            print(f"accuracy {float(trainer.callback_metrics['accuracy']):.3f} on {trainer.world_size} device(s)")
