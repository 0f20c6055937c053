"""The LightningModule, its options, the state of one trial, and what is kept between trials."""
