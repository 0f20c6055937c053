"""A Trainer for fits of toys."""

import lightning as L


def trainer_of(root, callbacks=(), **options):
    """Make a Trainer on the CPU, which writes nothing itself and ends with the schedule."""
    defaults = {
        "default_root_dir": root,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
        "inference_mode": False,
        "reload_dataloaders_every_n_epochs": 1,
        "max_epochs": -1,
    }
    return L.Trainer(**{**defaults, **options}, callbacks=list(callbacks))
