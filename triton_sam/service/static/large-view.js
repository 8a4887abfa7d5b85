// The part of a large image that is on the screen. ``scale`` is in pixels of the image for each pixel of CSS.

const NEAREST = 1 / 8;

export class View {
  constructor(image) {
    this.image = image;
    this.x = this.y = 0;
    this.scale = 1;
    this.width = this.height = 1;
  }

  /** Tell the view the size of the stage, in pixels of CSS. */
  resize(width, height) {
    const [x, y] = this.middle();
    [this.width, this.height] = [Math.max(1, width), Math.max(1, height)];
    this.#centre(x, y);
  }

  fit() {
    this.scale = this.#farthest();
    this.#centre(this.image.width / 2, this.image.height / 2);
  }

  move(dx, dy) {
    const [x, y] = this.middle();
    this.#centre(x - dx * this.scale, y - dy * this.scale);
  }

  /** Zoom around a place of the stage; factor 2 shows everything twice as large. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const [imageX, imageY] = this.toImage(x, y);
    this.scale = Math.max(NEAREST, Math.min(this.#farthest() * 1.5, this.scale / factor));
    this.x = imageX - x * this.scale;
    this.y = imageY - y * this.scale;
    this.move(0, 0);
  }

  toImage(x, y) {
    return [this.x + x * this.scale, this.y + y * this.scale];
  }

  toScreen(x, y) {
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }

  middle() {
    return this.toImage(this.width / 2, this.height / 2);
  }

  /** Return left, top, right and bottom in pixels of the image. */
  shown() {
    return [this.x, this.y, ...this.toImage(this.width, this.height)];
  }

  /** Return a place inside the image. */
  inside([x, y]) {
    return [Math.max(0, Math.min(this.image.width, x)), Math.max(0, Math.min(this.image.height, y))];
  }

  /** Whether a place of the stage shows the image. */
  isOn(x, y) {
    const [imageX, imageY] = this.toImage(x, y);
    return imageX >= 0 && imageY >= 0 && imageX <= this.image.width && imageY <= this.image.height;
  }

  #farthest() {
    return Math.max(NEAREST, this.image.width / this.width, this.image.height / this.height) * 1.04;
  }

  /** Look at a place; the middle of the stage always shows the image. */
  #centre(x, y) {
    [x, y] = this.inside([x, y]);
    this.x = x - (this.width / 2) * this.scale;
    this.y = y - (this.height / 2) * this.scale;
  }
}
