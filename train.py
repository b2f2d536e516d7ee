"""Train a model: `python train.py`, `python train.py model=cnn optimizer.lr=0.01`, `python train.py -m
optimizer.lr=0.1,0.01`.

The loop is meant to be read and changed. daypoint adds the lines with `run.` and `scalar_loss`.
"""

import os

# On shared cores torch's threads must not spin while they wait: that makes small models ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hydra
import torch
from omegaconf import DictConfig
from torch import nn

import daypoint
from daypoint import instantiate
from daypoint.zoo import training

daypoint.register_configs()


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float | None:
    cfg = daypoint.resumed(cfg)  # with resume=ADDRESS, that run's recorded config
    training.seed_everything(cfg.trainer.seed)
    device = training.pick_device(cfg.trainer.device)
    data = instantiate(cfg.data)
    # What only the data knows goes into the config, so that the recorded config rebuilds the model without the data.
    daypoint.fill(
        cfg, "data", name=data.name, input_shape=data.input_shape, outputs=data.outputs, task=data.task
    )

    model = instantiate(cfg.model).to(device)
    criterion = instantiate(cfg.loss)
    optimizer = instantiate(cfg.optimizer, params=model.parameters())
    batches, accumulate = len(data.train_loader(epoch=0)), cfg.trainer.accumulate
    updates = cfg.trainer.epochs * -(-batches // accumulate)
    daypoint.fill(cfg, "trainer", device=str(device), updates=updates)
    scheduler = instantiate(cfg.scheduler, optimizer=optimizer)
    training.check_steps(optimizer, scheduler)
    autocast, scaler = training.make_precision(cfg.trainer.precision, device)

    if cfg.debug not in (None, "shapes"):
        raise daypoint.ConfigError(f"debug: expected shapes or null, found {cfg.debug!r}")
    if cfg.debug == "shapes":
        x, _ = next(iter(data.train_loader(epoch=0)))
        if daypoint.print_shapes(model, x.to(device)):
            raise SystemExit(1)
        return None
    training.check_outputs(model, criterion, data, device)
    step_model = torch.compile(model) if cfg.trainer.compile else model
    monitor = cfg.trainer.monitor or ("val/accuracy" if data.task == "classification" else "val/loss")

    with daypoint.open_run(cfg, data=data, monitor=monitor) as run:
        run.restore(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
        for epoch in run.epochs(cfg.trainer.epochs, batches=batches):
            model.train()
            for i, (x, y) in enumerate(data.train_loader(epoch, start_batch=run.batch), start=run.batch):
                x, y = x.to(device), y.to(device)
                with autocast():
                    loss = daypoint.scalar_loss(criterion(step_model(x), y), batch_size=len(x))
                # Batches in this optimizer step; the last step of an epoch may have fewer.
                group = min(accumulate, batches - i // accumulate * accumulate)
                scaler.scale(loss / group).backward()
                metrics = {"loss": loss, "lr": optimizer.param_groups[0]["lr"]}
                if (i + 1) % accumulate == 0 or i + 1 == batches:
                    if cfg.trainer.clip_norm is not None:
                        scaler.unscale_(optimizer)
                        metrics["grad_norm"] = nn.utils.clip_grad_norm_(
                            model.parameters(), cfg.trainer.clip_norm
                        )
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad(set_to_none=True)
                    scheduler.step()
                run.log(metrics)
            run.log_epoch(training.evaluate(step_model, criterion, data, device, autocast))
            if (epoch + 1) % cfg.trainer.save_every == 0 or epoch + 1 == cfg.trainer.epochs:
                run.save(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
        return run.latest.get(monitor)


if __name__ == "__main__":
    main()
